"""Statistics of whole epochs."""

from trainer_samples import Reported

from headrace.pipeline.roles.learner import EpochStatistics


def opened():
    ended, reported = [], Reported()
    epochs = EpochStatistics(reported, 100, lambda step, values: ended.append((step, dict(values))))
    return epochs, reported, ended


def test_an_epoch_has_the_extremes_and_the_mean_of_what_was_reported_in_it():
    epochs, reported, ended = opened()
    epochs.advance(0)
    for low, mean, high in ((-3.0, 1.0, 2.0), (-1.0, 2.0, 7.0)):
        epochs.add("Test", "Policy/Q1 Min", low)
        epochs.add("Test", "Policy/Q1 Mean", mean)
        epochs.add("Test", "Policy/Q1 Max", high)
    epochs.extend("Test", "Environment/Cumulative Reward", (value for value in [5.0, 1.0]))
    epochs.add("Test", "Losses/Q1 Loss", 0.5)
    epochs.advance(99)
    assert not ended
    epochs.advance(104)
    ((step, values),) = ended
    assert step == 100
    assert values == {
        "Epoch/Q1 Min": -3.0,
        "Epoch/Q1 Mean": 1.5,
        "Epoch/Q1 Max": 7.0,
        "Epoch/EpRet Min": 1.0,
        "Epoch/EpRet Mean": 3.0,
        "Epoch/EpRet Max": 5.0,
    }
    assert reported.values["Losses/Q1 Loss"] == [0.5]
    assert reported.values["Environment/Cumulative Reward"] == [5.0, 1.0]
