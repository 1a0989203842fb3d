# Connects the agents to a trainer by the open protocol (docs/protocol.md): JSON behind its length over TCP. Copy it into a
# game.
#
# An agent is an object with: policy_name, reward, done, needs_reset; get_obs(), get_obs_space(), get_action_space(),
# set_action(action), get_info(). Where it ends it is told at once, with what it sees then; it decides again when it has begun
# anew. `changed` tells of environment parameters.
extends Node

signal changed(parameters: Dictionary)

const WAIT_USEC := 20

var agents: Array[Node] = []
var given := {}

var _peer := StreamPeerTCP.new()
var _repeat := 8
var _frame := 0
var _number := 0
var _ended := {}
var _asked := {}  # agents whose episodes have begun: only these can end


func _ready() -> void:
	_repeat = int(given.get("action_repeat", "8"))
	var url: String = given.get("trainer", "tcp://127.0.0.1:12008")
	var address := url.trim_prefix("tcp://").split(":")
	if not _connected(address[0], int(address[1])):
		_quit("No trainer listens at %s: start one first." % url, 1)
		return
	_peer.set_no_delay(true)
	var game: String = ProjectSettings.get_setting("application/config/name")
	_send({"type": "hello", "protocol": 1, "game": game, "behaviors": _behaviors()})
	_handle(_receive())  # welcome
	_handle(_receive())  # reset


func _connected(host: String, port: int) -> bool:
	if _peer.connect_to_host(host, port) != OK:
		return false
	while _peer.get_status() == StreamPeerTCP.STATUS_CONNECTING:
		OS.delay_usec(WAIT_USEC)
		_peer.poll()
	return _peer.get_status() == StreamPeerTCP.STATUS_CONNECTED


func _physics_process(_delta: float) -> void:
	_frame += 1
	for index in agents.size():
		var agent := agents[index]
		if agent.done:
			if _asked.erase(index):
				var cut: bool = agent.get_info().get("TimeLimit.truncated", false)
				_ended[index] = {"seen": agent.get_obs(), "reward": agent.reward, "cut": cut}
			agent.reward = 0.0
			agent.done = false
	if _frame % _repeat == 0:
		_send(_state())
		_handle(_receive())


func _handle(message: Dictionary) -> void:
	_number = message.get("number", 0)
	if message.has("parameters"):
		changed.emit(message["parameters"])
	match message.get("type"):
		"act":
			for behavior: String in message["actions"]:
				_act(message["actions"][behavior])
		"reset":
			_ended = {}
			_asked = {}
			for agent in agents:
				agent.reward = 0.0
				agent.done = false
				agent.needs_reset = true
		"welcome":
			print("Trainer: ", message["trainer"])
		"error":
			_quit("The trainer says: %s" % message["message"], 1)
		_:
			_quit("The trainer has sent %s; the game ends." % message.get("type"), 0)


func _act(part: Dictionary) -> void:
	for row: int in part["ids"].size():
		var agent := agents[int(part["ids"][row])]
		var action := {}
		var continuous := 0
		var branch := 0
		var space: Dictionary = agent.get_action_space()
		for key: String in space:
			if space[key]["action_type"] == "discrete":
				action[key] = int(part["discrete"][row][branch])
				branch += 1
			else:
				var size: int = space[key]["size"]
				action[key] = part["continuous"][row].slice(continuous, continuous + size)
				continuous += size
		agent.set_action(action)


func _behaviors() -> Dictionary:
	var found := {}
	for agent in agents:
		var observations: Array[Dictionary] = []
		var seen: Dictionary = agent.get_obs_space()
		for key: String in seen:
			observations.append({"name": key, "shape": seen[key]["size"]})
		var continuous := 0
		var discrete := {}
		var space: Dictionary = agent.get_action_space()
		for key: String in space:
			if space[key]["action_type"] == "discrete":
				discrete[key] = space[key]["size"]
			else:
				continuous += space[key]["size"]
		var actions := {"continuous": continuous, "discrete": discrete}
		found[agent.policy_name] = {"observations": observations, "actions": actions}
	return found


func _state() -> Dictionary:
	var found := {}
	for index in agents.size():
		var agent := agents[index]
		if not found.has(agent.policy_name):
			found[agent.policy_name] = {"deciding": _columns(agent), "ended": _columns(agent)}
			found[agent.policy_name]["ended"]["truncated"] = []
		var part: Dictionary = found[agent.policy_name]
		if _ended.has(index):
			_add(part["ended"], index, _ended[index]["seen"], _ended[index]["reward"])
			part["ended"]["truncated"].append(_ended[index]["cut"])
		if not agent.needs_reset:  # else it begins in the next frame
			_add(part["deciding"], index, agent.get_obs(), agent.reward)
			_asked[index] = true
			agent.reward = 0.0
	_ended = {}
	return {"type": "state", "number": _number, "agents": found}


func _columns(agent: Node) -> Dictionary:
	var observations: Array[Array] = []
	for _key: String in agent.get_obs_space():
		observations.append([])
	return {"ids": [], "observations": observations, "rewards": []}


func _add(columns: Dictionary, index: int, seen: Dictionary, reward: float) -> void:
	columns["ids"].append(index)
	columns["rewards"].append(reward)
	var place := 0
	for key: String in seen:
		columns["observations"][place].append(seen[key])
		place += 1


func _quit(why: String, status: int) -> void:
	print(why)
	get_tree().quit(status)
	set_physics_process(false)


func _send(message: Dictionary) -> void:
	var data := JSON.stringify(message).to_utf8_buffer()
	_peer.put_32(data.size())
	_peer.put_data(data)


func _receive() -> Dictionary:
	var size := _peer.get_32() if _awaited(4) else -1
	if size < 0 or not _awaited(size):
		return {"type": "nothing more"}
	return JSON.parse_string(_peer.get_utf8_string(size))


func _awaited(count: int) -> bool:
	while _peer.get_available_bytes() < count:
		_peer.poll()
		if _peer.get_status() != StreamPeerTCP.STATUS_CONNECTED:
			return false
		OS.delay_usec(WAIT_USEC)
	return true
