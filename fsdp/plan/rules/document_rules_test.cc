// Tests of the rules of documents, masks and epochs.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "fsdp/plan/rules/rules.h"

namespace fsdpd {
namespace {

// Training and validation tokens with ids up to 255, a vocabulary of 512, two ranks.
v1::JobSpec GoodJob() {
  v1::JobSpec job;
  job.set_name("packed");
  v1::Llama* llama = job.mutable_model()->mutable_llama();
  llama->set_vocab_size(512);
  llama->set_hidden_size(128);
  llama->set_intermediate_size(384);
  llama->set_layers(4);
  llama->set_heads(4);
  llama->set_kv_heads(2);
  v1::Data* data = job.mutable_data();
  data->set_sequence_length(128);
  data->set_document_end_token(2);
  data->set_packing(v1::PACKING_DOCUMENTS);
  for (v1::TokenFile* file : {data->add_tokens(), data->add_validation()}) {
    file->set_path("/data/text");
    file->set_mask("/data/text.mask");
    file->set_type(v1::TOKEN_TYPE_U8);
  }
  job.mutable_train()->set_steps(200);
  job.mutable_train()->mutable_evaluation()->set_every_steps(10);
  job.mutable_precision()->set_compute(v1::DTYPE_BF16);
  job.mutable_resources()->set_ranks_per_node(2);
  return job;
}

struct BadCase {
  const char* rule;
  const char* field;
  std::function<void(v1::JobSpec*)> spoil;
};

void MakeGpt2(v1::JobSpec* job) {
  v1::Gpt2* gpt2 = job->mutable_model()->mutable_gpt2();
  gpt2->set_vocab_size(512);
  gpt2->set_hidden_size(128);
  gpt2->set_layers(4);
  gpt2->set_heads(4);
  gpt2->set_positions(128);
}

void MakePlugin(v1::JobSpec* job) {
  v1::Plugin* plugin = job->mutable_model()->mutable_plugin();
  plugin->set_path("/models/mine.so");
  plugin->set_vocab_size(512);
  for (const char* name : {"first", "last"}) {
    v1::Plugin::Unit* unit = plugin->add_units();
    unit->set_name(name);
    unit->set_output_values(512);
    v1::Plugin::Param* param = unit->add_params();
    param->set_name("weight");
    param->add_shape(512);
    param->add_shape(512);
  }
}

void SetEpochs(double epochs, v1::JobSpec* job) {
  job->mutable_train()->clear_steps();
  job->mutable_train()->set_epochs(epochs);
}

std::vector<BadCase> BadCases() {
  using J = v1::JobSpec;
  return {
      {"mask_path_absolute", "data.tokens[0].mask",
       [](J* j) { j->mutable_data()->mutable_tokens(0)->set_mask("text.mask"); }},
      {"mask_path_absolute", "data.validation[0].mask",
       [](J* j) { j->mutable_data()->mutable_validation(0)->set_mask("text.mask"); }},
      {"mask_is_not_tokens", "data.tokens[0].mask",
       [](J* j) { j->mutable_data()->mutable_tokens(0)->set_mask("/data/text"); }},
      {"document_end_token_range", "data.document_end_token",
       [](J* j) { j->mutable_data()->set_document_end_token(-1); }},
      {"document_end_token_range", "data.document_end_token",
       [](J* j) { j->mutable_data()->set_document_end_token(512); }},
      {"document_end_token_occurs", "data.document_end_token",
       [](J* j) { j->mutable_data()->set_document_end_token(256); }},
      {"document_end_token_occurs", "data.document_end_token",
       [](J* j) {
         j->mutable_data()->clear_tokens();
         j->mutable_data()->clear_packing();
         j->mutable_data()->mutable_synthetic()->set_vocab(2);
       }},
      {"document_end_token_occurs", "data.document_end_token",
       [](J* j) {
         j->mutable_model()->mutable_llama()->set_vocab_size(1 << 17);
         v1::Data* data = j->mutable_data();
         data->mutable_tokens(0)->set_type(v1::TOKEN_TYPE_U32);
         *data->add_tokens() = data->tokens(0);
         data->mutable_tokens(0)->set_type(v1::TOKEN_TYPE_U8);
         data->set_document_end_token(1 << 16);
       }},
      {"document_end_token_ignored", "data.document_end_token",
       [](J* j) { j->mutable_data()->set_ignore_index(j->data().document_end_token()); }},
      {"documents_need_llama", "data.document_end_token", MakeGpt2},
      {"documents_need_llama", "data.document_end_token", MakePlugin},
      {"documents_need_whole_samples", "data.document_end_token",
       [](J* j) { j->mutable_parallel()->set_context(2); }},
  };
}

std::vector<BadCase> PackingCases() {
  using J = v1::JobSpec;
  return {
      {"packing_known", "data.packing",
       [](J* j) { j->mutable_data()->set_packing(static_cast<v1::Packing>(7)); }},
      {"packing_needs_document_end", "data.packing",
       [](J* j) { j->mutable_data()->clear_document_end_token(); }},
      {"packing_needs_files", "data.packing",
       [](J* j) {
         j->mutable_data()->clear_tokens();
         j->mutable_data()->mutable_synthetic()->set_vocab(256);
       }},
      {"packing_for_masks", "data.packing", [](J* j) { j->mutable_data()->clear_packing(); }},
      {"epochs_positive", "train.epochs", [](J* j) { SetEpochs(0, j); }},
      {"epochs_positive", "train.epochs",
       [](J* j) { SetEpochs(std::numeric_limits<double>::infinity(), j); }},
      {"epochs_or_steps", "train.epochs",
       [](J* j) {
         SetEpochs(3, j);
         j->mutable_train()->set_steps(1000);
       }},
      {"epochs_of_one_file", "train.epochs",
       [](J* j) {
         SetEpochs(3, j);
         *j->mutable_data()->add_tokens() = j->data().tokens(0);
       }},
      {"epochs_need_files", "train.epochs",
       [](J* j) {
         SetEpochs(3, j);
         j->mutable_data()->clear_tokens();
         j->mutable_data()->clear_packing();
         j->mutable_data()->mutable_synthetic();
       }},
      {"too_long_known", "data.too_long",
       [](J* j) { j->mutable_data()->set_too_long(static_cast<v1::TooLong>(7)); }},
      {"too_long_needs_packing", "data.too_long",
       [](J* j) {
         j->mutable_data()->set_packing(v1::PACKING_STREAM);
         j->mutable_data()->set_too_long(v1::TOO_LONG_DROP);
       }},
  };
}

std::string Ids(const Violations& found) {
  std::string text;
  for (const Violation& v : found) text += v.rule + " at " + v.field + ": " + v.reason + "\n";
  return text;
}

TEST(DocumentRules, EachCaseViolatesOnlyItsRule) {
  std::set<std::string> broken;
  std::vector<BadCase> cases = BadCases();
  for (BadCase& packing : PackingCases()) cases.push_back(std::move(packing));
  for (const BadCase& bad : cases) {
    v1::JobSpec job = GoodJob();
    bad.spoil(&job);
    const Violations found = CheckJob(job);
    ASSERT_EQ(found.size(), 1u) << "for " << bad.rule << ":\n" << Ids(found);
    EXPECT_EQ(found[0].rule, bad.rule);
    EXPECT_EQ(found[0].field, bad.field) << bad.rule;
    EXPECT_GT(found[0].reason.size(), 15u) << bad.rule;
    EXPECT_GT(found[0].fix.size(), 10u) << bad.rule;
    broken.insert(bad.rule);
  }
  for (const RuleText& rule : AllRules()) {
    const auto starts = [&rule](const char* prefix) { return rule.id.rfind(prefix, 0) == 0; };
    if (!starts("document") && !starts("mask_") && !starts("packing_") && !starts("too_long_") &&
        !starts("epochs_"))
      continue;
    EXPECT_EQ(broken.count(rule.id), 1u) << rule.id << " has no test case";
    EXPECT_GT(rule.text.size(), 10u) << rule.id;
  }
}

TEST(DocumentRules, AcceptsValidSpecs) {
  v1::JobSpec job = GoodJob();
  EXPECT_TRUE(CheckJob(job).empty()) << Ids(CheckJob(job));
  job.mutable_parallel()->set_tensor(2);
  EXPECT_TRUE(CheckJob(job).empty()) << Ids(CheckJob(job));
  for (const auto& model : {MakeGpt2, MakePlugin}) {  // Masks apply to targets, so any model supports them.
    v1::JobSpec masked = GoodJob();
    model(&masked);
    masked.mutable_data()->clear_document_end_token();
    masked.mutable_data()->clear_packing();
    EXPECT_TRUE(CheckJob(masked).empty()) << Ids(CheckJob(masked));
  }
  v1::JobSpec shared = GoodJob();
  shared.mutable_data()->clear_document_end_token();
  shared.mutable_data()->clear_packing();
  shared.mutable_parallel()->set_context(2);
  EXPECT_TRUE(CheckJob(shared).empty()) << Ids(CheckJob(shared));
}

}  // namespace
}  // namespace fsdpd
