"""Text of a stated process whose entropy is known: a Markov chain over a random lexicon."""

from typing import NamedTuple

import numpy as np

CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"


class Language(NamedTuple):
    """A lexicon and the probabilities of its words after each word.

    Words are separated by a space and distinct, so a text and its words determine each other, and
    the entropy of a character is that of a word divided by the mean length with its space.
    """

    words: tuple[str, ...]
    successors: np.ndarray  # int [words, branches]
    probabilities: np.ndarray  # [branches], of the successors of every word

    def text(self, length: int, seed: int) -> str:
        """Returns the first ``length`` characters of a text."""
        rng = np.random.default_rng(seed)
        shortest = 1 + min(map(len, self.words))
        choices = rng.choice(len(self.probabilities), -(-length // shortest), p=self.probabilities)
        word, chosen = 0, []
        for choice in choices:
            word = self.successors[word, choice]
            chosen.append(self.words[word])
        return " ".join(chosen)[:length]

    def entropy(self) -> float:
        """Returns the entropy of a character in nats: no model has a smaller expected loss."""
        count = len(self.words)
        transitions = np.zeros((count, count))
        np.add.at(transitions, (np.arange(count)[:, None], self.successors), self.probabilities)
        stationary = np.full(count, 1 / count)
        for _ in range(1000):
            stationary = stationary @ transitions
        logs = np.log(transitions, where=transitions > 0, out=np.zeros_like(transitions))
        of_word = -(transitions * logs).sum(axis=1) @ stationary
        lengths = np.array([len(word) + 1 for word in self.words])
        return float(of_word / (lengths @ stationary))


def language(num_words: int = 200, branches: int = 8, seed: int = 0) -> Language:
    """Draws a language.

    Words have one to three syllables of a consonant and a vowel.  Every word has ``branches``
    distinct successors, drawn uniformly, with probabilities proportional to 1, 1/2, 1/3, ...
    """
    rng = np.random.default_rng(seed)
    words: dict[str, None] = {}
    while len(words) < num_words:
        syllables = rng.integers(1, 4)
        words[
            "".join(rng.choice([*CONSONANTS]) + rng.choice([*VOWELS]) for _ in range(syllables))
        ] = None
    successors = np.stack([rng.permutation(num_words)[:branches] for _ in range(num_words)])
    weights = 1 / np.arange(1, branches + 1)
    return Language(tuple(words), successors, weights / weights.sum())
