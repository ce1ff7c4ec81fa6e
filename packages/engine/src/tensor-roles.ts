/** What a tensor is to its layer, by the end of its name; in the order of `Role` in native/weights.h. */
export const LAYER_ROLES = [
  "input_layernorm.weight",
  "post_attention_layernorm.weight",
  "self_attention_res_norm.weight",
  "self_attention_res_proj.weight",
  "mlp_res_norm.weight",
  "mlp_res_proj.weight",
  "self_attn.q_conv1d.weight",
  "self_attn.k_conv1d.weight",
  "self_attn.v_conv1d.weight",
  "self_attn.A_log",
  "self_attn.dt_bias",
  "self_attn.o_norm.weight",
  "self_attn.q_a_layernorm.weight",
  "self_attn.kv_a_layernorm.weight",
  "block_sparse_moe.gate.e_score_correction_bias",
  "block_sparse_moe.routed_expert_norm.weight",
  "language_model.model.output_attn_res_norm.weight",
  "language_model.model.output_attn_res_proj.weight",
  "language_model.model.norm.weight",
  "self_attn.q_proj.weight",
  "self_attn.k_proj.weight",
  "self_attn.v_proj.weight",
  "self_attn.g_proj.weight",
  "self_attn.o_proj.weight",
  "self_attn.f_a_proj.weight",
  "self_attn.f_b_proj.weight",
  "self_attn.b_proj.weight",
  "self_attn.q_a_proj.weight",
  "self_attn.q_b_proj.weight",
  "self_attn.kv_a_proj_with_mqa.weight",
  "self_attn.kv_b_proj.weight",
  "mlp.gate_proj.weight",
  "mlp.up_proj.weight",
  "mlp.down_proj.weight",
  "block_sparse_moe.gate.weight",
  "block_sparse_moe.routed_expert_down_proj.weight",
  "block_sparse_moe.routed_expert_up_proj.weight",
  "block_sparse_moe.shared_experts.gate_proj.weight",
  "block_sparse_moe.shared_experts.up_proj.weight",
  "block_sparse_moe.shared_experts.down_proj.weight",
  "language_model.lm_head.weight",
] as const;

export const NO_TENSOR = 0xffff_ffff;
const NUMBER = new Map<string, number>(LAYER_ROLES.map((name, role) => [name, role]));

/** The role of a dense tensor by its full name, or undefined when the engine does not use it. */
export function roleOf(name: string, layer: number | null): number | undefined {
  if (layer === null) return NUMBER.get(name);
  return NUMBER.get(name.slice(`language_model.model.layers.${layer}.`.length));
}
