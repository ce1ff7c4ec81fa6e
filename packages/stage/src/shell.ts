/**
 * `word` as a person would type it into a POSIX shell: as it is where it can be, else in single quotes. For commands
 * that are shown to be pasted.
 */
export const shellWord = (word: string): string =>
  /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
