// The released split pattern (k3 model card's tokenizer), written for JavaScript's `v` flag: class intersection with a
// complement becomes subtraction, the case-insensitive group is spelled out (Unicode folding makes U+017F an s), and
// \s becomes White_Space, which unlike JavaScript's \s has U+0085 and lacks U+FEFF.
const upper = String.raw`[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]--\p{Script=Han}]`;
const lower = String.raw`[[\p{Ll}\p{Lm}\p{Lo}\p{M}]--\p{Script=Han}]`;
const contraction = "(?:'[sSſ]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?";
const lead = String.raw`[^\r\n\p{L}\p{N}]?`;
const alternatives = [
  String.raw`\p{Script=Han}+`,
  `${lead}${upper}*${lower}+${contraction}`,
  `${lead}${upper}+${lower}*${contraction}`,
  String.raw`\p{N}{1,3}`,
  String.raw` ?[^\p{White_Space}\p{L}\p{N}]+[\r\n]*`,
  String.raw`\p{White_Space}*[\r\n]+`,
  String.raw`\p{White_Space}+(?!\P{White_Space})`,
  String.raw`\p{White_Space}+`,
];

/** Cuts text into the pieces inside which byte pairs merge. Every character is in exactly one piece. */
export function splitPieces(text: string): string[] {
  return text.match(new RegExp(alternatives.join("|"), "gv")) ?? [];
}
