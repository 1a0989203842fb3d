// The game without a page, at full speed: node headless.mjs --trainer=tcp://127.0.0.1:12008 [--courts=32]

import { Courts } from "./agents.mjs";
import { serve } from "./headrace.mjs";

const given = Object.fromEntries(process.argv.slice(2).map((word) => word.replace(/^--/, "").split("=")));
await serve(given.trainer ?? "tcp://127.0.0.1:12008", new Courts(Number(given.courts ?? 32)));
