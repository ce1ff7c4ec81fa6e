#include "model_tables.h"

#include <utility>

namespace k3 {

namespace {

Error fill_weights(ModelTables& tables, Weights* weights) {
  const auto t = tables.tensors, s = tables.segments, p = tables.pieces, b = tables.blocks;
  if (t.size() % 3 || s.size() % 4 || p.size() % 3 || p.size() / 3 != tables.piece_offsets.size() ||
      b.size() % 8) {
    return {"E_DEFECT", "the weight tables have wrong sizes", ""};
  }
  weights->config = std::move(tables.config);
  weights->roles.assign(tables.roles.begin(), tables.roles.end());
  weights->segments.reserve(s.size() / 4);
  weights->pieces.reserve(p.size() / 3);
  weights->blocks.reserve(b.size() / 8);
  for (size_t i = 0; i < t.size(); i += 3) {
    if (t[i + 2] > 1) return {"E_DEFECT", "unknown dtype", ""};
    Tensor& tensor = weights->tensors.emplace_back();
    tensor.rows = t[i], tensor.cols = t[i + 1], tensor.dtype = static_cast<Dtype>(t[i + 2]);
  }
  for (size_t i = 0; i < s.size(); i += 4) weights->segments.push_back({s[i], s[i + 1], s[i + 2], s[i + 3]});
  for (size_t i = 0; i < p.size(); i += 3) {
    const double offset = tables.piece_offsets[i / 3];
    if (!(offset >= 0 && offset < 9e15)) return {"E_DEFECT", "a piece has a wrong offset", ""};
    weights->pieces.push_back({p[i], static_cast<uint64_t>(offset), p[i + 1], p[i + 2]});
  }
  for (size_t i = 0; i < b.size(); i += 8) {
    Block& block = weights->blocks.emplace_back();
    block.first_segment = b[i], block.segments = b[i + 1], block.first_piece = b[i + 2],
    block.pieces = b[i + 3];
    block.raw = b[i + 4], block.crc = b[i + 5], block.layer = b[i + 6];
    block.codec = static_cast<uint8_t>(b[i + 7]), block.checked = (b[i + 7] >> 8) != 0;
  }
  return {};
}

Error fill_experts(ModelTables& tables, ExpertTable* experts) {
  *experts = std::move(tables.experts);
  experts->offsets.assign(tables.expert_offsets.begin(), tables.expert_offsets.end());
  experts->files.assign(tables.expert_files.begin(), tables.expert_files.end());
  for (double bytes : tables.expert_part_bytes) {
    if (!(bytes > 0 && bytes < 1e12)) return {"E_DEFECT", "an expert's part has a wrong size", ""};
    experts->part_bytes.push_back(static_cast<uint64_t>(bytes));
  }
  experts->parts = static_cast<uint32_t>(experts->part_bytes.size());
  return {};
}

Error check_experts(const Config& c, const ExpertTable& experts, const std::vector<FileSpec>& files) {
  if (Error wrong = experts.check(files)) return wrong;
  const uint64_t matrix = uint64_t{c.moe_inner} * c.latent;
  const bool mxfp4 = experts.format == ExpertFormat::mxfp4;
  if (mxfp4 && (c.moe_inner % 32 || c.latent % 32)) return {"E_DEFECT", "MXFP4 widths", ""};
  const uint64_t plain = matrix * (experts.format == ExpertFormat::bf16 ? 2 : 4);
  for (uint32_t i = 0; i < experts.parts; ++i) {
    const uint64_t expected = !mxfp4 ? plain : i % 2 == 0 ? matrix / 2 : matrix / 32;
    if (experts.part_bytes[i] != expected)
      return {"E_DEFECT", "an expert's part has another size than its shape", ""};
  }
  if (experts.parts != (mxfp4 ? 6u : 3u) || experts.layers != c.moe_layers() ||
      experts.experts != c.experts) {
    return {"E_DEFECT", "the expert table does not fit the config", ""};
  }
  return {};
}

}  // namespace

Error build_model(ModelTables tables, EngineModel* model) {
  if (Error error = fill_weights(tables, &model->weights)) return error;
  if (Error error = fill_experts(tables, &model->experts)) return error;
  model->files = std::move(tables.files);
  model->embedding = tables.embedding;
  if (Error error = model->weights.finish(model->files)) return error;
  const Config& c = model->weights.config;
  if (c.moe_layers() > 0) {
    if (Error error = check_experts(c, model->experts, model->files)) return error;
  }
  const Embedding& embedding = model->embedding;
  const uint64_t bytes = uint64_t{c.vocab} * c.hidden * dtype_bytes(embedding.dtype);
  if (embedding.file >= model->files.size() || bytes > model->files[embedding.file].size ||
      embedding.offset > model->files[embedding.file].size - bytes) {
    return {"E_DEFECT", "the embedding leaves its file", ""};
  }
  return {};
}

}  // namespace k3
