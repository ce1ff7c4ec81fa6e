export { fetchSnapshot } from "./fetch-snapshot.ts";
export { DEFAULT_ENDPOINT, type FetchOptions, type FetchResult } from "./options.ts";
