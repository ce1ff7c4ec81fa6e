import type { Checkpoint } from "@k3/checkpoint";
import type { NativeConfig } from "./native.ts";

/** The config as the addon takes it, of the layers that run. */
export function nativeConfig({ config: c, layers }: Checkpoint): NativeConfig {
  return {
    hidden: c.hiddenSize,
    layers,
    vocab: c.vocabSize,
    rmsNormEps: c.rmsNormEps,
    attnResBlockSize: c.attnResBlockSize,
    situBeta: c.situBeta,
    situLinearBeta: c.situLinearBeta,
    intermediate: c.intermediateSize,
    experts: c.experts,
    expertsPerToken: c.expertsPerToken,
    sharedInner: c.sharedExperts * c.moeIntermediateSize,
    moeInner: c.moeIntermediateSize,
    latent: c.routedExpertHiddenSize,
    latentNorm: c.latentMoeUseNorm,
    renormalize: c.moeRenormalize,
    routedScale: c.routedScalingFactor,
    mlaHeads: c.mla.heads,
    qLora: c.mla.qLoraRank,
    kvLora: c.mla.kvLoraRank,
    nope: c.mla.qkNopeHeadDim,
    rope: c.mla.qkRopeHeadDim,
    vDim: c.mla.vHeadDim,
    mlaGate: c.mla.outputGate,
    kdaHeads: c.kda.heads,
    kdaDim: c.kda.headDim,
    kdaConv: c.kda.convKernel,
    gateLowerBound: c.kda.gateLowerBound,
    isMla: Uint8Array.from(c.attention.slice(0, layers), (kind) => (kind === "mla" ? 1 : 0)),
    isMoe: Uint8Array.from(c.feedForward.slice(0, layers), (kind) => (kind === "moe" ? 1 : 0)),
  };
}
