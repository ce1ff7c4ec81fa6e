export { DEFAULT_ENDPOINT } from "@k3/hub";
export { fetchSnapshot } from "./fetch-snapshot.ts";
export type { FetchOptions, FetchResult } from "./options.ts";
