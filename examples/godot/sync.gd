# Connects the agents to a trainer, as the addon of Godot RL Agents did in the days of Godot 3: JSON behind its length over
# TCP, the game being the client. With --generation=new it announces spaces one an agent, policies' names and infos, as
# the addon of today does.
#
# An agent is an object with: policy_name, reward, done, needs_reset; get_obs(), get_obs_space(), get_action_space(),
# set_action(action), get_info().
extends Node

const WAIT_USEC = 20

var agents = []
var given = {}

var _peer = StreamPeerTCP.new()
var _new = false
var _repeat = 8
var _frame = 0
var _must_answer = false
var _was_reset = false

func _ready():
	_new = given.get("generation", "old") == "new"
	_repeat = int(given.get("action_repeat", "8"))
	Engine.time_scale = float(given.get("speedup", "1"))
	Engine.iterations_per_second = int(60 * Engine.time_scale)
	if not _connected(int(given.get("port", "11008"))):
		print("No trainer listens at port ", given.get("port", "11008"), ": start one first.")
		get_tree().quit(1)
		set_physics_process(false)
		return
	_peer.set_no_delay(true)
	var hello = _receive()
	print("Trainer with protocol ", hello.get("major_version"), ".", hello.get("minor_version"))
	_receive()  # env_info is asked for
	_send(_announcement())

func _connected(port):
	if _peer.connect_to_host("127.0.0.1", port) != OK:
		return false
	while _peer.get_status() == StreamPeerTCP.STATUS_CONNECTING:
		OS.delay_usec(WAIT_USEC)
	return _peer.get_status() == StreamPeerTCP.STATUS_CONNECTED

func _physics_process(_delta):
	_frame += 1
	if _frame % _repeat != 0:
		return
	if _was_reset:
		_was_reset = false
		var answer = {"type": "reset", "obs": _of_all("get_obs")}
		if _new:
			answer["info"] = _of_all("get_info")
		_send(answer)
		return  # the next action counts from the next window on, as with the addon
	if _must_answer:
		_send(_step())
	while _handled(_receive()):
		pass

func _handled(message):
	# Returns true if another message has to come before the game goes on.
	match message.get("type"):
		"action":
			for index in range(agents.size()):
				agents[index].set_action(message["action"][index])
			_must_answer = true
			return false
		"reset":
			for agent in agents:
				agent.needs_reset = true
			_must_answer = false
			_was_reset = true
			return false
		"call":
			var returns = []
			for agent in agents:
				returns.append(agent.call(message["method"]))
			_send({"type": "call", "returns": returns})
			return true
	return _quit("The trainer has sent %s; the game ends." % message.get("type"))

func _quit(why):
	print(why)
	get_tree().quit(0)
	set_physics_process(false)
	return false

func _step():
	var rewards = []
	var done = []
	var infos = _of_all("get_info")
	var seen = _of_all("get_obs")
	for agent in agents:
		rewards.append(agent.reward)
		done.append(agent.done)
		agent.reward = 0.0
		agent.done = false
	var answer = {"type": "step", "obs": seen, "reward": rewards, "done": done}
	if _new:
		answer["info"] = infos
	return answer

func _announcement():
	var answer = {"type": "env_info", "n_agents": agents.size()}
	if _new:
		answer["observation_space"] = _of_all("get_obs_space")
		answer["action_space"] = _of_all("get_action_space")
		answer["agent_policy_names"] = []
		for agent in agents:
			answer["agent_policy_names"].append(agent.policy_name)
	else:
		answer["observation_space"] = agents[0].get_obs_space()
		answer["action_space"] = agents[0].get_action_space()
	return answer

func _of_all(method):
	var found = []
	for agent in agents:
		found.append(agent.call(method))
	return found

func _send(message):
	var data = JSON.print(message).to_ascii()
	_peer.put_32(data.size())
	_peer.put_data(data)

func _receive():
	var size = _peer.get_32() if _awaited(4) else -1
	if size < 0 or not _awaited(size):
		return {"type": "nothing more"}
	return JSON.parse(_peer.get_string(size)).result

func _awaited(count):
	while _peer.get_available_bytes() < count:
		if _peer.get_status() != StreamPeerTCP.STATUS_CONNECTED:
			return false
		OS.delay_usec(WAIT_USEC)
	return true
