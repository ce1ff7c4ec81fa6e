import { lockFile } from "@k3/stage";

await lockFile(process.argv[2], "holding on");
process.stdout.write("held\n");
setInterval(() => undefined, 1000);
