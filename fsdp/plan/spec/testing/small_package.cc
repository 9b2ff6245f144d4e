#include "fsdp/plan/spec/testing/small_package.h"

#include <initializer_list>
#include <string>

namespace fsdpd {
namespace {

constexpr int64_t kHiddenBytes = 2 * 32 * 16 * 4;

void AddParam(const char* name, std::initializer_list<int64_t> shape, v1::Package::Graph* graph) {
  v1::Package::Param* param = graph->add_params();
  param->set_name(name);
  param->mutable_shape()->Assign(shape.begin(), shape.end());
  param->set_decay(shape.size() > 1);
}

void AddVariant(v1::Recompute recompute, int64_t saved_bytes, int64_t workspace_bytes, double flops,
                v1::Package::Graph* graph) {
  v1::Package::Variant* variant = graph->add_variants();
  variant->set_recompute(recompute);
  variant->set_saved_bytes(saved_bytes);
  variant->set_workspace_bytes(workspace_bytes);
  variant->set_recomputed_flops(flops);
}

v1::Package::Graph* AddGraph(int64_t output_bytes, v1::Package* package) {
  v1::Package::Graph* graph = package->add_graphs();
  graph->set_output_bytes(output_bytes);
  if (output_bytes > 0) graph->set_output_type(v1::DTYPE_FP32);
  return graph;
}

void AddUnit(const char* name, int64_t graph, const char* module, v1::Package* package) {
  v1::Package::Unit* unit = package->add_units();
  unit->set_name(name);
  unit->set_graph(graph);
  unit->set_module(module);
}

}  // namespace

v1::Package SmallPackage() {
  v1::Package package;
  package.set_path("/models/small.fsdpd");
  package.set_digest(std::string(64, 'a'));
  package.set_vocab_size(96);
  package.set_sequence_length(32);
  package.set_micro_batch_size(2);
  package.set_compute(v1::DTYPE_FP32);
  package.set_device(v1::DEVICE_CPU);
  package.set_target("x86-64-v3");
  package.set_torch_version("2.11.0");

  v1::Package::Graph* embedding = AddGraph(kHiddenBytes, &package);
  AddParam("weight", {96, 16}, embedding);
  AddVariant(v1::RECOMPUTE_NONE, 0, 0, 0, embedding);

  v1::Package::Graph* layer = AddGraph(kHiddenBytes, &package);
  AddParam("mlp.weight", {16, 16}, layer);
  AddParam("norm.weight", {16}, layer);
  AddVariant(v1::RECOMPUTE_NONE, 3 * kHiddenBytes, 1000, 0, layer);
  AddVariant(v1::RECOMPUTE_FULL, kHiddenBytes, 11000, 32768, layer);
  layer->set_forward_flops(32768);
  layer->set_forward_bytes(4 * kHiddenBytes);
  layer->set_backward_bytes(8 * kHiddenBytes);
  layer->set_backward_reads_params(true);
  layer->set_evaluation_workspace_bytes(100);

  v1::Package::Graph* head = AddGraph(0, &package);
  AddParam("model.norm.weight", {16}, head);
  AddParam("lm_head.weight", {96, 16}, head);
  AddVariant(v1::RECOMPUTE_NONE, kHiddenBytes, 500, 0, head);
  head->mutable_head()->set_weight(1);

  AddUnit("model.embed_tokens", 0, "model.embed_tokens", &package);
  AddUnit("model.layers.0", 1, "model.layers.0", &package);
  AddUnit("model.layers.1", 1, "model.layers.1", &package);
  AddUnit("head", 2, "", &package);
  return package;
}

}  // namespace fsdpd
