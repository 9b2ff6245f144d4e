#include "fsdp/plan/model/activation_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "fsdp/plan/model/describe_model.h"

namespace fsdpd {
namespace {

Spec SpecOf(int64_t layers, int64_t offloaded, Recompute recompute, int64_t recompute_layers) {
  Spec spec;
  LlamaConfig llama;
  llama.vocab_size = 64;
  llama.hidden_size = 32;
  llama.intermediate_size = 48;
  llama.layers = layers;
  llama.heads = 4;
  llama.kv_heads = 2;
  llama.head_size = 8;
  spec.model = llama;
  spec.data.sequence_length = 8;
  spec.offloaded_layers = offloaded;
  spec.recompute = recompute;
  spec.recompute_layers = recompute_layers;
  return spec;
}

// One character per layer: o if offloaded, else n, s or f by recompute kind; upper case for an offloaded
// layer that recomputes.
std::string Kept(int64_t layers, int64_t offloaded, Recompute recompute, int64_t recompute_layers) {
  const Spec spec = SpecOf(layers, offloaded, recompute, recompute_layers);
  const ModelFacts model = DescribeSpec(spec);
  std::string kept;
  for (size_t u = 0; u < model.units.size(); ++u) {
    const auto unit = static_cast<int>(u);
    const bool away = OffloadsActivations(spec, model, unit);
    const Recompute own = RecomputeOf(spec, model, unit);
    EXPECT_EQ(OffloadedBytes(spec, model, unit) > 0, away);
    if (model.units[u].kind != UnitKind::kBlock) {
      EXPECT_FALSE(away);
      continue;
    }
    const size_t which = static_cast<size_t>(own);
    kept += away ? "oSF"[which] : "nsf"[which];
  }
  return kept;
}

TEST(ActivationPolicy, SpreadsOffloadedLayersExceptLast) {
  EXPECT_EQ(Kept(8, 0, Recompute::kNone, 0), "nnnnnnnn");
  EXPECT_EQ(Kept(8, 1, Recompute::kNone, 0), "onnnnnnn");
  EXPECT_EQ(Kept(8, 3, Recompute::kNone, 0), "onnononn");
  EXPECT_EQ(Kept(8, 7, Recompute::kNone, 0), "ooooooon");
  EXPECT_EQ(Kept(8, 8, Recompute::kNone, 0), "oooooooo");
  EXPECT_EQ(Kept(1, 1, Recompute::kNone, 0), "o");
}

TEST(ActivationPolicy, OffloadsRequestedNumberOfLayers) {
  for (int64_t layers = 1; layers <= 20; ++layers) {
    for (int64_t offloaded = 0; offloaded <= layers; ++offloaded) {
      const std::string kept = Kept(layers, offloaded, Recompute::kNone, 0);
      EXPECT_EQ(std::count(kept.begin(), kept.end(), 'o'), offloaded) << kept;
      for (int64_t recomputing = 0; recomputing <= layers; ++recomputing) {
        const std::string full = Kept(layers, offloaded, Recompute::kFull, recomputing);
        EXPECT_EQ(std::count(full.begin(), full.end(), 'f'), std::min(recomputing, layers - offloaded))
            << full;
      }
    }
  }
}

TEST(ActivationPolicy, LimitsOffloadedLayersToSelectiveRecompute) {
  EXPECT_EQ(Kept(8, 3, Recompute::kFull, 3), "SffSfSss");
  EXPECT_EQ(Kept(8, 3, Recompute::kFull, 8), "SffSfSff");
  EXPECT_EQ(Kept(8, 3, Recompute::kSelective, 2), "SssSnSnn");
}

}  // namespace
}  // namespace fsdpd
