// Answers of gcloud, written by hand after the documented forms of the Compute Engine API, which `gcloud --format=json` prints.

const API = "https://www.googleapis.com/compute/v1/projects/my-project-1";
/** An entry of a list of quotas. */
export const quota = (metric: string, limit: number, usage = 0) => ({ limit, metric, usage });

/** Answers of a project where nothing is missing for the default machine, by the name of the file they are kept in. */
export const enough = () => ({
  project: {
    kind: "compute#project",
    name: "my-project-1",
    quotas: [
      quota("NETWORKS", 5, 1),
      quota("FIREWALLS", 100, 4),
      quota("ROUTERS", 10),
      quota("CPUS_ALL_REGIONS", 12),
    ],
  },
  region: {
    kind: "compute#region",
    name: "us-central1",
    quotas: [
      quota("CPUS", 24, 8),
      quota("N2_CPUS", 8),
      quota("DISKS_TOTAL_GB", 4096, 100),
      quota("SSD_TOTAL_GB", 500, 100),
      quota("LOCAL_SSD_TOTAL_GB", 6000),
      quota("PREEMPTIBLE_CPUS", 0),
      quota("PREEMPTIBLE_LOCAL_SSD_GB", 0),
      quota("INSTANCES", 24, 2),
      quota("IN_USE_ADDRESSES", 8),
    ],
  },
  "machine-types": [
    {
      guestCpus: 4,
      kind: "compute#machineType",
      maximumPersistentDisksSizeGb: "263168",
      memoryMb: 16384,
      name: "e2-standard-4",
      zone: `${API}/zones/us-central1-a`,
    },
    {
      guestCpus: 8,
      memoryMb: 32768,
      name: "n2-standard-8",
      maximumPersistentDisksSizeGb: "263168",
      zone: "us-central1-a",
    },
    { guestCpus: 8, memoryMb: 32768, name: "c3-standard-8", zone: `${API}/zones/us-central1-b` },
  ],
  "disk-types": [
    { name: "pd-standard", validDiskSize: "10GB-65536GB", zone: `${API}/zones/us-central1-a` },
    { name: "pd-balanced", validDiskSize: "10GB-65536GB", zone: `${API}/zones/us-central1-a` },
  ],
  image: { name: "ubuntu-2404-noble-amd64-v20251205", status: "READY", diskSizeGb: "10" },
});
