/** Text of our own that the miniature's byte pairs are learned from, beside its sentences and conversations. */
export const PROSE = `
A model that is larger than the memory of the machine can still be run, if its weights are read from the disk while it
works. Every word that it writes costs one pass over the layers, and every layer must be there when its turn comes. So
the reader runs ahead of the workers, block after block, and the workers take what has come and multiply. Nothing that
was computed depends on how much memory there was; only the time does.

The layers are not alike. Most of them keep a small matrix for each head, which fades a little with every word and is
then corrected, so that a long text costs no more than a short one. Every fourth layer looks back at all the words
before, through a narrow latent that is cheap to keep. Between them stand the experts. A router chooses a few of many
for every word, and only those are read. The shared expert sees every word, whatever the router says.

Before the first word there is the long way: plan, fetch, verify, pack, run and measure. The plan says what it will
take. The files are fetched in pieces, and a piece that is on the disk is never fetched again. Each of them is verified
against the hash that was published. The dense weights are packed without loss, in the order in which they are needed.
When the machine is stopped in the middle of the night, the same command goes on where it was in the morning.

What can you ask of a small model? You can ask for the capital of a country, for the number of days in a week, or what
water does at one hundred degrees. It has learned a handful of sentences, and it says them only when the whole of the
computation is right. If a gate is missing, or two matrices are swapped, or the state is not carried from one word to
the next, then it will say something else. That is all that it is for.

def fibonacci(n):
    if n < 2:
        return n
    return fibonacci(n - 1) + fibonacci(n - 2)

def total(values):
    result = 0
    for value in values:
        result = result + value
    return result

Ein kleines Modell liest seine Gewichte von der Platte und schreibt ein Wort nach dem anderen. Wer wartet, sieht, wie
weit es ist. Un petit modèle lit ses poids sur le disque et écrit un mot après l'autre. It's slow, but it doesn't stop,
and we've all the time that we'll need. There are 93 layers, 896 experts and 163840 words in the large one.
`;
