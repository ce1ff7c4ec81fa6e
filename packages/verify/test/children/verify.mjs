// Verifies the directory given, one event a line, until it is done or killed.
import { verify } from "../../dist/index.js";

const result = await verify({
  dir: process.argv[2],
  onEvent: (event) => process.stdout.write(`${JSON.stringify(event)}\n`),
});
process.stdout.write(`${JSON.stringify({ type: "result", ...result })}\n`);
