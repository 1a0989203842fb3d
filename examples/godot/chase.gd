# An agent in a square of its own runs after a target, which jumps elsewhere when it is caught.
#
# It sees where the target is and how fast it moves itself, and chooses its velocity (`move`, two numbers); with --mixed it
# also chooses whether to dash, at twice the speed on half the frames. A catch is worth 1, coming nearer by the width of the
# square 0.5. Episodes last 600 physics frames: 75 decisions of 8 frames.
extends Node

const SPEED = 1.5
const NEAR = 0.15
const FRAMES = 600

var policy_name = "Chase"
var mixed = false
var reward = 0.0
var done = false
var needs_reset = true

var _place = Vector2()
var _target = Vector2()
var _move = Vector2()
var _dash = false
var _age = 0
var _catches = 0

func _physics_process(delta):
	if needs_reset:
		_begin()
	_age += 1
	var before = _place.distance_to(_target)
	var speed = SPEED
	if _dash:
		speed *= 2.0 if _age % 2 == 0 else 0.0
	_place += _move.clamped(1.0) * speed * delta
	_place = Vector2(clamp(_place.x, -1, 1), clamp(_place.y, -1, 1))
	reward += (before - _place.distance_to(_target)) / 4
	if _place.distance_to(_target) < NEAR:
		reward += 1
		_catches += 1
		_target = _anywhere()
	if _age >= FRAMES:
		done = true
		needs_reset = true

func _begin():
	needs_reset = false
	_age = 0
	_catches = 0
	_move = Vector2()
	_place = _anywhere()
	_target = _anywhere()

func _anywhere():
	return Vector2(rand_range(-1, 1), rand_range(-1, 1))

func get_obs():
	var way = _target - _place
	return {"obs": [way.x, way.y, _move.x, _move.y]}

func get_obs_space():
	return {"obs": {"size": [4], "space": "box"}}

func get_action_space():
	var space = {"move": {"size": 2, "action_type": "continuous"}}
	if mixed:
		space["dash"] = {"size": 2, "action_type": "discrete"}
	return space

func set_action(action):
	_move = Vector2(action["move"][0], action["move"][1])
	_dash = mixed and int(action["dash"]) == 1

func get_info():
	return {"is_success": _catches > 5} if done else {}
