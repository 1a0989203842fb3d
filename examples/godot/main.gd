# The scene: as many agents as are asked for, of the game that is asked for, and the node that connects them to a trainer.
#
#   --game=chase|duel   --agents=16   --mixed (chase: a discrete action beside the continuous one)
extends Node

const Chase = preload("res://chase.gd")
const Duel = preload("res://duel.gd")
const Sync = preload("res://sync.gd")
const OpenSync = preload("res://open_sync.gd")

func _ready():
	var given = arguments()
	seed(int(given.get("seed", given.get("env_seed", "1"))))
	var count = int(given.get("agents", "16"))
	var agents = []
	if given.get("game", "chase") == "duel":
		for _arena in range(count / 2):
			var arena = Duel.new()
			add_child(arena)
			agents += arena.agents
	else:
		for _agent in range(count):
			var agent = Chase.new()
			agent.mixed = given.has("mixed")
			add_child(agent)
			agents.append(agent)
	# Last, so that in each frame the agents move before they are asked what they see.
	var sync = OpenSync.new() if given.has("trainer") else Sync.new()
	sync.agents = agents
	sync.given = given
	add_child(sync)

static func arguments():
	var given = {}
	for word in OS.get_cmdline_args():
		if word.begins_with("--"):
			var parts = word.substr(2).split("=", true, 1)
			given[parts[0]] = parts[1] if parts.size() > 1 else "true"
	return given
