// Asks the site's own search: node site_search.js WORKER INDEX QUERY…; prints the pages for each query, best first.
const fs = require("fs")
const [worker, index, ...queries] = process.argv.slice(2)
const answers = []
let hear
globalThis.self = globalThis
globalThis.addEventListener = (_, listener) => { hear = listener }
globalThis.postMessage = (message) => answers.push(message.data)
;(0, eval)(fs.readFileSync(worker, "utf8"))

async function ask(type, data) {
  const before = answers.length
  await hear({ data: { type, data } })
  while (answers.length === before) await new Promise(setImmediate)
}

async function main() {
  const { config, docs } = JSON.parse(fs.readFileSync(index, "utf8"))
  await ask(0, { config, docs, options: { suggest: false } })
  for (const query of queries) await ask(2, query.split(" ").map((word) => `${word}*`).join(" ")) // as the page does
  const pages = (answer) => answer.items.map((sections) => sections[0].location.split("#")[0])
  console.log(JSON.stringify(answers.slice(1).map(pages)))
}
main()
