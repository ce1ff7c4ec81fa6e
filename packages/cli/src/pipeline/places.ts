import { join } from "node:path";

/** Where a pipeline keeps its checkpoint and its trunk. */
export const placesOf = (dir: string) => ({ modelDir: join(dir, "model"), trunkDir: join(dir, "trunk") });
