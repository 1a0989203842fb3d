# Two agents race for one target: who reaches it first gets 1, the other -1, and the game ends for both.
#
# Each sees where the target and the other one are, and chooses its velocity. A game that nobody wins within 300 physics
# frames ends with 0 for both.
extends Node

const SPEED = 1.2
const NEAR = 0.12
const FRAMES = 300

var agents = []
var target = Vector2()
var _age = 0

class Racer:
	extends Node

	var policy_name = ""
	var reward = 0.0
	var done = false
	var needs_reset = true
	var place = Vector2()
	var move = Vector2()
	var arena
	var other
	var won = false

	func get_obs():
		var way = arena.target - place
		var rival = other.place - place
		return {"obs": [way.x, way.y, rival.x, rival.y]}

	func get_obs_space():
		return {"obs": {"size": [4], "space": "box"}}

	func get_action_space():
		return {"move": {"size": 2, "action_type": "continuous"}}

	func set_action(action):
		move = Vector2(action["move"][0], action["move"][1]).clamped(1.0)

	func get_info():
		return {"is_success": won} if done else {}

func _init():
	for team in range(2):
		var racer = Racer.new()
		racer.policy_name = "Duel?team=%d" % team
		racer.arena = self
		add_child(racer)
		agents.append(racer)
	agents[0].other = agents[1]
	agents[1].other = agents[0]

func _physics_process(delta):
	if agents[0].needs_reset or agents[1].needs_reset:
		_begin()
	_age += 1
	var distances = []
	for racer in agents:
		racer.place += racer.move * SPEED * delta
		racer.place = Vector2(clamp(racer.place.x, -1, 1), clamp(racer.place.y, -1, 1))
		distances.append(racer.place.distance_to(target))
	var reached = min(distances[0], distances[1]) < NEAR
	if reached or _age >= FRAMES:
		for team in range(2):
			var racer = agents[team]
			racer.won = reached and distances[team] < distances[1 - team]
			if reached:
				racer.reward += 1.0 if racer.won else -1.0
			racer.done = true
			racer.needs_reset = true

func _begin():
	_age = 0
	# As far from the target for one as for the other.
	target = Vector2(rand_range(-0.3, 0.3), rand_range(-0.3, 0.3))
	var way = Vector2(rand_range(0.4, 0.6), 0).rotated(rand_range(0, 2 * PI))
	for team in range(2):
		agents[team].needs_reset = false
		agents[team].won = false
		agents[team].move = Vector2()
		agents[team].place = target + (way if team == 0 else -way)
