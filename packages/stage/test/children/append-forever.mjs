import { Journal } from "@k3/stage";

const { journal } = await Journal.open(process.argv[2]);
for (let n = 1; ; n++) {
  await journal.append(n);
  process.stdout.write(`${n}\n`);
}
