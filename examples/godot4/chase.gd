# An agent in a square of its own runs after a target, which jumps elsewhere when it is caught.
#
# It sees where the target is and how fast it moves itself, and chooses its velocity (`move`, two numbers); with --mixed it
# also chooses whether to dash, at twice the speed on half the frames. A catch is worth 1, coming nearer by the width of the
# square 0.5. Episodes last 600 physics frames (75 decisions of 8 frames), and are then cut by time.
extends Node

const SPEED := 1.5
const NEAR := 0.15
const FRAMES := 600

# What `open_sync.gd` reads and sets; a controller of the addon (AIController2D, AIController3D) has the same.
var policy_name := "Chase"
var reward := 0.0
var done := false
var needs_reset := true

var mixed := false

var _place := Vector2.ZERO
var _target := Vector2.ZERO
var _move := Vector2.ZERO
var _dash := false
var _age := 0


func _physics_process(delta: float) -> void:
	if needs_reset:
		_begin()
	_age += 1
	var before := _place.distance_to(_target)
	var speed := SPEED
	if _dash:
		speed *= 2.0 if _age % 2 == 0 else 0.0
	_place += _move.limit_length() * speed * delta
	_place = _place.clamp(-Vector2.ONE, Vector2.ONE)
	reward += (before - _place.distance_to(_target)) / 4
	if _place.distance_to(_target) < NEAR:
		reward += 1.0
		_target = _anywhere()
	if _age >= FRAMES:
		done = true
		needs_reset = true


func _begin() -> void:
	needs_reset = false
	_age = 0
	_move = Vector2.ZERO
	_place = _anywhere()
	_target = _anywhere()


func _anywhere() -> Vector2:
	return Vector2(randf_range(-1, 1), randf_range(-1, 1))


func get_obs() -> Dictionary:
	var way := _target - _place
	return {"obs": [way.x, way.y, _move.x, _move.y]}


func get_obs_space() -> Dictionary:
	return {"obs": {"size": [4], "space": "box"}}


func get_action_space() -> Dictionary:
	var space := {"move": {"size": 2, "action_type": "continuous"}}
	if mixed:
		space["dash"] = {"size": 2, "action_type": "discrete"}
	return space


func set_action(action: Dictionary) -> void:
	_move = Vector2(action["move"][0], action["move"][1])
	_dash = mixed and int(action["dash"]) == 1


# The addon's controllers tell a time limit in the same words.
func get_info() -> Dictionary:
	return {"TimeLimit.truncated": true} if done else {}
