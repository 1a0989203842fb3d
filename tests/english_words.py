"""The word list of `test_english.py`: expressions that are foreign in our text, and what an engineer writes.

Each entry is a regular expression over lower-case text, in which a space also matches the end of a line. An entry belongs here if
it is wrong nearly everywhere; what is sometimes right is in CONTRIBUTING.md, under Style.
"""

from __future__ import annotations

from typing import Final

FOREIGN: Final = {
    # Words that no manual has.
    r"dear(er|est)?": "expensive, slow",
    r"anew": "again, from scratch, a new …",
    r"nobody": "name who: no user, no process, no stage, nothing",
    r"beforehand": "in advance, before …",
    r"likewise": "also, in the same way",
    r"hence": "so, therefore",
    r"(there|where|here)(by|of|upon|after)": "split the sentence: 'so', 'this', 'of which'",
    r"in vain": "for nothing: say what never arrives",
    r"persons": "people, users, players",
    r"hinder(s|ed|ing)?": "prevent, block",
    r"mend(s|ed|ing)?": "fix",
    r"for ever": "forever, indefinitely",
    r"(lies?|lay|lain)(?! (between|within|outside|above|below))": "is, is stored, is in",
    r"half-made": "incomplete, partial",
    r"beside(?! the point)": "next to, alongside, together with, compared with",
    r"besides": "also, in addition to",
    r"underway|under way": "in progress, running, pending",
    r"lacking": "missing",
    # Speech about programs.
    r"told": "reported, sent, notified; 'can't be told apart' is 'can't be distinguished'",
    r"asked": "requested, queried, called",
    r"(says?|said|tells?|speaks?) of": "say about, report, state",
    r"says? so": "'with a warning', 'logs a warning', 'the error names it'",
    r"no word (of|from)": "no message from, nothing received from",
    r"without a word|in silence": "silently, without a message",
    r"(is|are|was|were|be|been) given up": "is abandoned, is dropped",
    r"(see|sees|seen|saw|seeing) to": "handle, make sure that",
    # German syntax in English words.
    r"of (its|their|one's) own": "its own …, a separate …",
    r"of (ours|theirs|yours|mine)": "our …, your …, Headrace's …",
    r"one's own": "your own, custom",
    r"such an?|such one|such is|such are": "this, a … like this, of this kind",
    r"so many": "that many, this many, N",
    r"all else": "everything else",
    r"but for": "except, apart from",
    r"by then": "at that point, so far",
    r"where it is (?!written|defined|used|called)": "if it is …, if …",
    r"where there (is|are) (one|none|no)": "if there is …, otherwise",
    r"what (they|it) (leave|leaves|left)": "name the thing: the rest, its files, its processes",
    r"at the latest": "no later than, within",
    r"some (tenths|hundredths|thousandths)": "a few tenths",
    r"(go|goes|went|gone) on(?! to)": "continue, keep running, resume",
    r"(is|are|was|were) not there": "is missing, does not exist",
    r"(?<!there\s)(is|are|was|were) no (?!longer|more|less|need|one|better|worse|different)(?=\w)": "is not a …, are not …",
    r"no more(?=[.,;:)])": "no longer …, stops …",
    r"in all(?=[.,;:)]| \|| over )": "in total",
    r"once more": "again",
    r"from (the \w+|[\d.]+( \w+)?) on(?=[.,;:)]| \|)": "since …, … or later",
    r"on (its|their) way": "in flight, in transit",
    r"(come|comes|came|coming|become|becomes) of": "happens to, results from",
    r"(break|breaks|broke|breaking|broken) off": "stops, is interrupted, is cut short",
    r"each (\w+ )?(for|by) itself": "each … separately, independently",
    r"as there(?=[.,;:)])": "as in …, like …",
    r"as is usual": "as usual",
    r"some (seconds|minutes|hours|days)": "a few …",
    r"some \d": "about …",
    r"to the (last )?bit": "bit for bit",
    r"(any|some)body": "name who: a user, a caller, someone",
    r"to be had": "available",
    r"in the place of": "in place of, instead of",
    r"(made|makes?|making) of (it|them)": "name the result: it becomes …",
    r"(begins?|began|begun) again": "restarts",
    r"(is|are|was|were|been) begun": "is started, has started",
    r"(is|are|was|were|be) waited for": "… waits for it",
    r"(is|are|was|were) said(?! to)": "is reported, states",
}
