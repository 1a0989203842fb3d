# Connects the agents to a trainer by the open protocol (docs/protocol.md): JSON behind its length over TCP. Copy it into a
# game, or write the like in another language.
#
# An agent is an object with: policy_name, reward, done, needs_reset; get_obs(), get_obs_space(), get_action_space(),
# set_action(action). Where it ends it is told at once, with what it sees then; it decides again when it has begun anew.
extends Node

const WAIT_USEC = 20

var agents = []
var given = {}

var _peer = StreamPeerTCP.new()
var _repeat = 8
var _frame = 0
var _number = 0
var _ended = {}
var _asked = {}  # agents whose episodes have begun: only these can end

func _ready():
	_repeat = int(given.get("action_repeat", "8"))
	var address = given["trainer"].replace("tcp://", "").split(":")
	if not _connected(address[0], int(address[1])):
		print("No trainer listens at ", given["trainer"], ": start one first.")
		get_tree().quit(1)
		set_physics_process(false)
		return
	_peer.set_no_delay(true)
	_send({"type": "hello", "protocol": 1, "game": given.get("game", "game"), "behaviors": _behaviors()})
	_handle(_receive())  # welcome
	_handle(_receive())  # reset

func _connected(host, port):
	if _peer.connect_to_host(host, port) != OK:
		return false
	while _peer.get_status() == StreamPeerTCP.STATUS_CONNECTING:
		OS.delay_usec(WAIT_USEC)
	return _peer.get_status() == StreamPeerTCP.STATUS_CONNECTED

func _physics_process(_delta):
	_frame += 1
	for index in range(agents.size()):
		var agent = agents[index]
		if agent.done:
			if _asked.erase(index):
				_ended[index] = {"seen": agent.get_obs(), "reward": agent.reward}
			agent.reward = 0.0
			agent.done = false
	if _frame % _repeat == 0:
		_send(_state())
		_handle(_receive())

func _handle(message):
	_number = message.get("number", 0)
	match message.get("type"):
		"act":
			for behavior in message["actions"]:
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

func _act(part):
	for row in range(part["ids"].size()):
		var agent = agents[int(part["ids"][row])]
		var action = {}
		var continuous = 0
		var branch = 0
		var space = agent.get_action_space()
		for key in space:
			if space[key]["action_type"] == "discrete":
				action[key] = part["discrete"][row][branch]
				branch += 1
			else:
				var size = space[key]["size"]
				action[key] = part["continuous"][row].slice(continuous, continuous + size - 1)
				continuous += size
		agent.set_action(action)

func _behaviors():
	var found = {}
	for agent in agents:
		var observations = []
		var seen = agent.get_obs_space()
		for key in seen:
			observations.append({"name": key, "shape": seen[key]["size"]})
		var continuous = 0
		var discrete = {}
		var space = agent.get_action_space()
		for key in space:
			if space[key]["action_type"] == "discrete":
				discrete[key] = space[key]["size"]
			else:
				continuous += space[key]["size"]
		var actions = {"continuous": continuous, "discrete": discrete}
		found[agent.policy_name] = {"observations": observations, "actions": actions}
	return found

func _state():
	var found = {}
	for index in range(agents.size()):
		var agent = agents[index]
		if not found.has(agent.policy_name):
			found[agent.policy_name] = {"deciding": _columns(agent), "ended": _columns(agent)}
		var part = found[agent.policy_name]
		if _ended.has(index):
			_add(part["ended"], index, _ended[index]["seen"], _ended[index]["reward"])
		if not agent.needs_reset:  # else it begins in the next frame
			_add(part["deciding"], index, agent.get_obs(), agent.reward)
			_asked[index] = true
			agent.reward = 0.0
	_ended = {}
	return {"type": "state", "number": _number, "agents": found}

func _columns(agent):
	var observations = []
	for _key in agent.get_obs_space():
		observations.append([])
	return {"ids": [], "observations": observations, "rewards": []}

func _add(columns, index, seen, reward):
	columns["ids"].append(index)
	columns["rewards"].append(reward)
	var place = 0
	for key in seen:
		columns["observations"][place].append(seen[key])
		place += 1

func _quit(why, status):
	print(why)
	get_tree().quit(status)
	set_physics_process(false)

func _send(message):
	var data = JSON.print(message).to_utf8()
	_peer.put_32(data.size())
	_peer.put_data(data)

func _receive():
	var size = _peer.get_32() if _awaited(4) else -1
	if size < 0 or not _awaited(size):
		return {"type": "nothing more"}
	return JSON.parse(_peer.get_utf8_string(size)).result

func _awaited(count):
	while _peer.get_available_bytes() < count:
		if _peer.get_status() != StreamPeerTCP.STATUS_CONNECTED:
			return false
		OS.delay_usec(WAIT_USEC)
	return true
