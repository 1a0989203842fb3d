# The scene: agents in squares of their own, and the node that connects them to a trainer.
#
#   --agents=16   --mixed (a discrete action beside the continuous one)
extends Node

const Chase := preload("res://chase.gd")
const OpenSync := preload("res://open_sync.gd")


func _ready() -> void:
	var given := arguments()
	seed(int(given.get("seed", "1")))
	var agents: Array[Node] = []
	for _agent in int(given.get("agents", "16")):
		var agent := Chase.new()
		agent.mixed = given.has("mixed")
		agents.append(agent)
		add_child(agent)
	# Last, so that in each frame the agents move before they are asked what they see.
	var sync := OpenSync.new()
	sync.agents = agents
	sync.given = given
	add_child(sync)


static func arguments() -> Dictionary:
	var given := {}
	for word in OS.get_cmdline_args():
		if word.begins_with("--"):
			var parts := word.substr(2).split("=", true, 1)
			given[parts[0]] = parts[1] if parts.size() > 1 else "true"
	return given
