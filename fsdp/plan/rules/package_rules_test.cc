#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "fsdp/plan/rules/rules.h"
#include "fsdp/plan/spec/testing/small_package.h"

namespace fsdpd {
namespace {

v1::JobSpec PackageJob() {
  v1::JobSpec job;
  job.set_name("exported");
  *job.mutable_model()->mutable_package() = SmallPackage();
  job.mutable_data()->mutable_synthetic();
  job.mutable_train()->set_steps(200);
  job.mutable_resources()->set_nodes(2);
  job.mutable_fsdp()->set_strategy(v1::STRATEGY_NO_SHARD);
  return job;
}

struct BadCase {
  std::string rule;
  std::string field;
  void (*spoil)(v1::JobSpec*, v1::Package*);
};
using J = v1::JobSpec;
using P = v1::Package;

// Layers that share the graph.
void SetLayers(int count, P* package) {
  const v1::Package::Unit layer = package->units(1), head = package->units(3);
  package->mutable_units()->DeleteSubrange(1, 3);
  for (int i = 0; i < count; ++i) {
    *package->add_units() = layer;
    package->mutable_units(i + 1)->set_name(absl::StrCat("model.layers.", i));
    package->mutable_units(i + 1)->set_module(absl::StrCat("model.layers.", i));
  }
  *package->add_units() = head;
}

// Parameters of each layer.
void SetParams(int count, P* package) {
  v1::Package::Graph* layer = package->mutable_graphs(1);
  const v1::Package::Param param = layer->params(0);
  layer->clear_params();
  for (int i = 0; i < count; ++i) {
    *layer->add_params() = param;
    layer->mutable_params(i)->set_name(absl::StrCat("experts.", i));
  }
}

std::vector<BadCase> UnitCases() {
  return {
      {"package_units", "model.package.units", [](J*, P* p) { p->clear_units(), p->clear_graphs(); }},
      {"package_units", "model.package.units[1].graph", [](J*, P* p) { p->mutable_units(1)->set_graph(3); }},
      {"package_units", "model.package.units[1].graph", [](J*, P* p) { p->mutable_units(1)->set_graph(-1); }},
      {"package_units", "model.package.units", [](J*, P* p) { p->add_graphs(), p->add_graphs(); }},
      {"package_units", "model.package.units", [](J*, P* p) { p->mutable_graphs(2)->clear_head(); }},
      {"package_units", "model.package.units", [](J*, P* p) { p->mutable_graphs(1)->mutable_head(); }},
      {"package_units", "model.package.units", [](J*, P* p) { p->mutable_units(1)->set_graph(2); }},
      {"package_units", "model.package.units",  // 200 million parameters.
       [](J*, P* p) {
         for (int i = 0; i < 200000; ++i) p->mutable_graphs(1)->add_params();
         SetLayers(1000, p);
       }},
      {"package_params", "model.package.graphs[1].params",
       [](J*, P* p) {
         SetParams(4097, p);
         SetLayers(1, p);
       }},
      {"package_names", "model.package.units[1].name",
       [](J*, P* p) { p->mutable_units(1)->set_name("a b"); }},
      {"package_names", "model.package.units[2].name",
       [](J*, P* p) { p->mutable_units(2)->set_name("model.layers.0"); }},
      {"package_names", "model.package.units[1].module",
       [](J*, P* p) { p->mutable_units(1)->set_module("a/b"); }},
      {"package_names", "model.package.graphs[2].params",
       [](J*, P* p) { p->mutable_graphs(2)->mutable_params(0)->set_name("norm."); }},
      {"package_names", "model.package.graphs[2].params[0].name",  // Equal full names in two units.
       [](J*, P* p) { p->mutable_graphs(2)->mutable_params(0)->set_name("model.layers.1.norm.weight"); }},
      {"package_params", "model.package.graphs[0].params[0].shape",
       [](J*, P* p) { p->mutable_graphs(0)->mutable_params(0)->set_shape(0, -96); }},
      {"package_params", "model.package.units",
       [](J*, P* p) { p->mutable_graphs(1)->mutable_params(0)->set_shape(0, int64_t{1} << 36); }},
      {"package_tied", "model.package.units[0].tied_to",
       [](J*, P* p) { p->mutable_units(0)->set_tied_to("head"); }},
      {"package_tied", "model.package.units[2].tied_to",
       [](J*, P* p) {
         p->mutable_units(1)->set_tied_to("model.embed_tokens");
         p->mutable_units(2)->set_tied_to("model.embed_tokens");
       }},
  };
}

std::vector<BadCase> ManifestCases() {
  return {
      {"package_path_absolute", "model.package.path", [](J*, P* p) { p->set_path("small.fsdpd"); }},
      {"package_path_absolute", "model.package.path", [](J*, P* p) { p->set_path("/a/../b.fsdpd"); }},
      {"package_digest", "model.package.digest", [](J*, P* p) { p->set_digest("abc"); }},
      {"package_digest", "model.package.digest", [](J*, P* p) { p->set_digest(std::string(64, 'A')); }},
      {"package_shape", "model.package.vocab_size", [](J*, P* p) { p->clear_vocab_size(); }},
      {"package_shape", "model.package.sequence_length",
       [](J* j, P* p) {
         p->set_sequence_length(-1);
         j->mutable_data()->set_sequence_length(32);
       }},
      {"package_shape", "model.package.micro_batch_size",
       [](J* j, P* p) {
         p->set_micro_batch_size((1 << 19) + 1);
         j->mutable_train()->set_micro_batch(1);
       }},
      {"package_shape", "model.package.micro_batch_size",  // More tokens than a micro-batch may have.
       [](J* j, P* p) {
         p->set_sequence_length(1 << 20);
         p->set_micro_batch_size(17);
         j->mutable_data()->set_sequence_length(1 << 20);
         j->mutable_train()->set_micro_batch(1);
       }},
      {"package_shape", "model.package.buffer_bytes", [](J*, P* p) { p->set_buffer_bytes(-1); }},
      {"package_types", "model.package.compute", [](J*, P* p) { p->clear_compute(); }},
      {"package_types", "model.package.device", [](J*, P* p) { p->set_device(static_cast<v1::Device>(77)); }},
      {"package_numbers", "model.package.graphs[0].output_bytes",
       [](J*, P* p) { p->mutable_graphs(0)->clear_output_bytes(); }},
      {"package_numbers", "model.package.graphs[0].output_type",
       [](J*, P* p) { p->mutable_graphs(0)->clear_output_type(); }},
      {"package_numbers", "model.package.graphs[1].variants[1].saved_bytes",
       [](J*, P* p) { p->mutable_graphs(1)->mutable_variants(1)->set_saved_bytes(int64_t{1} << 60); }},
      {"package_numbers", "model.package.graphs[1].forward_flops",
       [](J*, P* p) { p->mutable_graphs(1)->set_forward_flops(std::nan("")); }},
      {"package_numbers", "model.package.graphs[1].variants[0].backward_seconds",
       [](J*, P* p) { p->mutable_graphs(1)->mutable_variants(0)->set_backward_seconds(-1); }},
      {"package_numbers", "model.package.graphs[1].variants[0].forward_seconds",
       [](J*, P* p) { p->mutable_graphs(1)->mutable_variants(0)->set_forward_seconds(1e6); }},
      {"package_times", "model.package.graphs[0].variants[0].forward_seconds",
       [](J*, P* p) { p->set_matmul_flops(1e15); }},
      {"package_times", "model.package.graphs[1].variants[1].backward_seconds",
       [](J*, P* p) { p->mutable_graphs(1)->mutable_variants(1)->set_backward_seconds(0.1); }},
      {"package_times", "model.package.graphs[0].variants[0].backward_seconds",
       [](J*, P* p) {
         p->set_matmul_flops(1e15);
         p->mutable_graphs(0)->mutable_variants(0)->set_forward_seconds(0.1);
       }},
      {"package_numbers", "model.package.matmul_flops",
       [](J*, P* p) { p->set_matmul_flops(std::numeric_limits<double>::infinity()); }},
      {"package_variants", "model.package.graphs[0].variants",
       [](J*, P* p) { p->mutable_graphs(0)->clear_variants(); }},
      {"package_variants", "model.package.graphs[1].variants",
       [](J*, P* p) { p->mutable_graphs(1)->mutable_variants(1)->set_recompute(v1::RECOMPUTE_NONE); }},
      {"package_head", "model.package.graphs[2].head.weight",
       [](J*, P* p) { p->mutable_graphs(2)->mutable_head()->set_weight(2); }},
      {"package_head", "model.package.graphs[2].head.weight", [](J*, P* p) { p->set_vocab_size(97); }},
      {"package_head", "model.package.graphs[2].head.bias",
       [](J*, P* p) { p->mutable_graphs(2)->mutable_head()->set_bias(0); }},
      {"package_head", "model.package.graphs[2].head.logit_scale",
       [](J*, P* p) { p->mutable_graphs(2)->mutable_head()->set_logit_scale(0); }},
      {"package_head", "model.package.graphs[2].head.soft_cap",
       [](J*, P* p) { p->mutable_graphs(2)->mutable_head()->set_soft_cap(-1); }},
  };
}

std::vector<BadCase> JobCases() {
  return {
      {"package_unresolved", "model.package",
       [](J* j, P* p) {
         p->Clear();
         p->set_path("/models/small.fsdpd");
         j->mutable_data()->set_sequence_length(32);
       }},
      {"package_sequence_length", "data.sequence_length",
       [](J* j, P*) { j->mutable_data()->set_sequence_length(64); }},
      {"package_micro_batch", "train.micro_batch", [](J* j, P*) { j->mutable_train()->set_micro_batch(4); }},
      {"package_device", "resources.device",
       [](J* j, P*) {
         j->mutable_resources()->set_device(v1::DEVICE_CUDA);
         j->mutable_precision()->set_compute(v1::DTYPE_FP32);
       }},
      {"package_compute", "precision.compute",
       [](J* j, P*) { j->mutable_precision()->set_compute(v1::DTYPE_BF16); }},
      {"package_recompute", "fsdp.recompute",
       [](J* j, P*) { j->mutable_fsdp()->set_recompute(v1::RECOMPUTE_SELECTIVE); }},
      // Rules of other sections.
      {"initial_not_for_plugins", "train.initial",
       [](J* j, P*) { j->mutable_train()->mutable_initial()->set_std(0.01); }},
      {"fp8_needs_llama", "precision.compute",
       [](J* j, P* p) {
         p->set_device(v1::DEVICE_CUDA);
         j->mutable_precision()->set_compute(v1::DTYPE_FP8);
       }},
      {"documents_need_llama", "data.document_end_token",
       [](J* j, P*) { j->mutable_data()->set_document_end_token(0); }},
      {"document_end_token_range", "data.document_end_token",
       [](J* j, P* p) {
         p->set_documents(true);
         j->mutable_data()->set_document_end_token(-1);
       }},
      {"parallel_tensor_needs_llama", "parallel.tensor",
       [](J* j, P*) {
         j->mutable_parallel()->set_tensor(2);
         j->mutable_resources()->set_ranks_per_node(2);
       }},
      {"parallel_context_needs_llama", "parallel.context",
       [](J* j, P*) { j->mutable_parallel()->set_context(2); }},
      {"parallel_expert_divides_experts", "parallel.expert",
       [](J* j, P*) { j->mutable_parallel()->set_expert(2); }},
      {"package_pipeline", "parallel.pipeline",
       [](J* j, P* p) {
         j->mutable_parallel()->set_pipeline(2);
         p->mutable_graphs(1)->set_output_type(v1::DTYPE_BF16);
       }},
      {"parallel_pipeline_has_units", "parallel.pipeline",
       [](J* j, P*) {
         j->mutable_resources()->set_nodes(5);
         j->mutable_parallel()->set_pipeline(5);
       }},
      {"parallel_pipeline_trains", "train.frozen",
       [](J* j, P* p) {
         j->mutable_parallel()->set_pipeline(2);
         p->mutable_graphs(0)->mutable_params(0)->set_frozen(true);
       }},
      {"deterministic_package", "train.deterministic",
       [](J* j, P* p) {
         p->set_device(v1::DEVICE_CUDA);
         j->mutable_train()->set_deterministic(true);
       }},
  };
}

std::string Text(const Violations& found) {
  std::string text;
  for (const Violation& v : found) text += v.rule + " at " + v.field + ": " + v.reason + "; " + v.fix + "\n";
  return text;
}

TEST(PackageRules, FillsWhatThePackageFixes) {
  EXPECT_EQ(Text(CheckJob(PackageJob())), "");
  v1::JobSpec written = PackageJob();
  written.mutable_data()->set_sequence_length(32);
  written.mutable_train()->set_micro_batch(2);
  written.mutable_precision()->set_compute(v1::DTYPE_FP32);
  written.mutable_resources()->set_device(v1::DEVICE_CPU);
  written.mutable_fsdp()->set_recompute(v1::RECOMPUTE_FULL);
  written.mutable_parallel()->set_pipeline(2);
  written.mutable_train()->set_deterministic(true);
  written.mutable_checkpoint()->set_dir("/ckpt");
  written.mutable_checkpoint()->set_export_("hf");
  EXPECT_EQ(Text(CheckJob(written)), "");
}

TEST(PackageRules, GraphsMayHaveAllModes) {
  v1::JobSpec job = PackageJob();
  v1::Package::Graph* const layer = job.mutable_model()->mutable_package()->mutable_graphs(1);
  layer->add_variants()->set_recompute(v1::RECOMPUTE_SELECTIVE);
  job.mutable_fsdp()->set_recompute(v1::RECOMPUTE_SELECTIVE);
  EXPECT_EQ(Text(CheckJob(job)), "");
}

TEST(PackageRules, EachCaseViolatesOnlyItsRule) {
  std::vector<BadCase> cases = ManifestCases();
  for (const std::vector<BadCase>& more : {UnitCases(), JobCases()})
    cases.insert(cases.end(), more.begin(), more.end());
  std::set<std::string> broken;
  for (const BadCase& bad : cases) {
    v1::JobSpec job = PackageJob();
    bad.spoil(&job, job.mutable_model()->mutable_package());
    const Violations found = CheckJob(job);
    ASSERT_EQ(found.size(), 1u) << "for " << bad.rule << " at " << bad.field << ":\n" << Text(found);
    EXPECT_EQ(found[0].rule, bad.rule);
    EXPECT_EQ(found[0].field, bad.field) << bad.rule;
    EXPECT_GT(found[0].reason.size(), 15u) << bad.rule;
    EXPECT_GE(found[0].fix.size(), 10u) << bad.rule;
    broken.insert(bad.rule);
  }
  for (const RuleText& rule : AllRules()) {
    if (rule.id == "memory_over_budget") break;  // Rows from here on are checked by docs/rules.py.
    if (rule.id.rfind("package_", 0) == 0) {
      EXPECT_EQ(broken.count(rule.id), 1u) << rule.id;
    }
  }
}

TEST(PackageRules, NamesTheFlagOfTheExporter) {
  v1::JobSpec job = PackageJob();
  job.mutable_data()->set_sequence_length(64);
  EXPECT_EQ(
      Text(CheckJob(job)),
      "package_sequence_length at data.sequence_length: the package was exported for another value (got "
      "64, want 32); leave the field out, or export the package again with --sequence-length 64\n");
}

TEST(PackageRules, AcceptsHundredThousandParameters) {
  v1::JobSpec job = PackageJob();
  SetParams(98, job.mutable_model()->mutable_package());
  SetLayers(1024, job.mutable_model()->mutable_package());
  EXPECT_EQ(Text(CheckJob(job)), "");
}

// A thousand units repeat each error of their graph, whose names and shapes can be a megabyte.
TEST(PackageRules, ShortensLongNames) {
  v1::JobSpec job = PackageJob();
  v1::Package* package = job.mutable_model()->mutable_package();
  SetLayers(1000, package);
  package->mutable_graphs(1)->mutable_params(0)->set_name(std::string(1 << 19, 'a'));
  package->mutable_graphs(1)->mutable_params(0)->mutable_shape()->Resize(1 << 18, 0);
  const Violations found = CheckJob(job);
  EXPECT_EQ(found.size(), 2000u);
  for (const Violation& each : found) ASSERT_LT(each.reason.size(), 300u) << each.rule;
}

TEST(PackageRules, NamesUnitAndVariant) {
  v1::JobSpec job = PackageJob();
  v1::Package* package = job.mutable_model()->mutable_package();
  package->mutable_graphs(1)->mutable_variants(1)->set_saved_bytes(-1);
  package->mutable_graphs(2)->mutable_head()->set_bias(0);
  std::vector<std::string> reasons;
  for (const Violation& each : CheckJob(job)) reasons.push_back(each.reason);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].rfind("saved_bytes of variant full of graph 1 (unit model.layers.0) is -1 ", 0), 0u)
      << reasons[0];
  package->mutable_graphs(1)->mutable_variants(1)->set_saved_bytes(0);
  EXPECT_EQ(CheckJob(job)[0].reason, "parameter model.norm.weight is not a vector of 96 elements");
}

TEST(PackageRules, AcceptsTiedHead) {
  v1::JobSpec job = PackageJob();
  v1::Package* package = job.mutable_model()->mutable_package();
  package->mutable_units(3)->set_tied_to("model.embed_tokens");
  package->mutable_graphs(2)->mutable_params()->DeleteSubrange(1, 1);
  EXPECT_EQ(Text(CheckJob(job)), "");
}

}  // namespace
}  // namespace fsdpd
