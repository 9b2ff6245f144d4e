#include "fsdp/plan/rules/rules.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <set>

namespace fsdpd {
namespace {
using Corrupt = std::function<void(v1::JobSpec*)>;

struct BadCase {
  const char* rule;
  const char* field;
  Corrupt spoil;
};

v1::JobSpec GoodJob() {
  v1::JobSpec job;
  job.set_name("tiny-llama");
  job.mutable_model()->set_preset("tiny");
  job.mutable_data()->mutable_synthetic();
  job.mutable_data()->set_sequence_length(128);
  job.mutable_train()->set_steps(200);
  job.mutable_train()->set_micro_batch(4);
  job.mutable_train()->set_global_batch(16);
  job.mutable_resources()->set_nodes(2);
  job.mutable_resources()->set_ranks_per_node(2);
  job.mutable_resources()->set_device(v1::DEVICE_CPU);
  return job;
}

v1::Elastic* Elastic(v1::JobSpec* job) {
  job->mutable_checkpoint()->set_dir("/runs/1");
  job->mutable_checkpoint()->set_every_steps(10);
  job->mutable_restart()->mutable_elastic()->set_min_ranks(2);
  return job->mutable_restart()->mutable_elastic();
}

v1::Llama* SpelledOut(v1::JobSpec* job) {
  v1::Llama* llama = job->mutable_model()->mutable_llama();
  llama->set_vocab_size(512);
  llama->set_hidden_size(128);
  llama->set_intermediate_size(384);
  llama->set_layers(4);
  llama->set_heads(4);
  llama->set_kv_heads(2);
  return llama;
}

v1::Gpt2* Gpt2(v1::JobSpec* job) {
  v1::Gpt2* gpt2 = job->mutable_model()->mutable_gpt2();
  gpt2->set_vocab_size(512);
  gpt2->set_hidden_size(128);
  gpt2->set_layers(4);
  gpt2->set_heads(4);
  gpt2->set_positions(128);
  return gpt2;
}

v1::Plugin* Plugin(v1::JobSpec* job) {
  v1::Plugin* plugin = job->mutable_model()->mutable_plugin();
  plugin->set_path("/models/mine.so");
  plugin->set_vocab_size(512);
  for (const char* name : {"first", "second", "last"}) {
    v1::Plugin::Unit* unit = plugin->add_units();
    unit->set_name(name);
    unit->set_output_values(512);
    v1::Plugin::Param* param = unit->add_params();
    param->set_name("weight");
    param->add_shape(512);
    param->add_shape(512);
  }
  return plugin;
}

v1::Sgd* Sgd(v1::JobSpec* job) {
  v1::Sgd* sgd = job->mutable_optimizer()->mutable_sgd();
  sgd->set_lr(0.1);
  return sgd;
}

v1::Train* Evaluated(v1::JobSpec* job) {
  job->mutable_data()->add_validation()->set_path("/data/valid.bin");
  job->mutable_train()->mutable_evaluation()->set_every_steps(10);
  return job->mutable_train();
}

v1::TokenFile* TextFile(v1::JobSpec* job) {
  job->mutable_data()->clear_synthetic();
  job->mutable_data()->add_tokens()->set_path("/data/a.bin");
  job->mutable_data()->add_tokens()->set_path("/data/b.bin");
  return job->mutable_data()->mutable_tokens(1);
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

std::vector<BadCase> ModelCases() {
  return {
      {"name_is_label", "name", [](v1::JobSpec* j) { j->set_name(""); }},
      {"name_is_label", "name", [](v1::JobSpec* j) { j->set_name("../x"); }},
      {"model_required", "model", [](v1::JobSpec* j) { j->clear_model(); }},
      {"preset_unknown", "model.preset", [](v1::JobSpec* j) { j->mutable_model()->set_preset("llama3-8B"); }},
      {"hf_config_unresolved", "model.hf_config",
       [](v1::JobSpec* j) { j->mutable_model()->set_hf_config("config.json"); }},
      {"vocab_size_range", "model.llama.vocab_size",
       [](v1::JobSpec* j) { SpelledOut(j)->set_vocab_size(0); }},
      {"hidden_size_range", "model.llama.hidden_size",
       [](v1::JobSpec* j) { SpelledOut(j)->set_hidden_size(-1); }},
      {"hidden_size_range", "model.llama.hidden_size",
       [](v1::JobSpec* j) { SpelledOut(j)->set_hidden_size(int64_t{1} << 40); }},
      {"intermediate_size_range", "model.llama.intermediate_size",
       [](v1::JobSpec* j) { SpelledOut(j)->set_intermediate_size(0); }},
      {"layers_range", "model.llama.layers", [](v1::JobSpec* j) { SpelledOut(j)->set_layers(1025); }},
      {"heads_range", "model.llama.heads", [](v1::JobSpec* j) { SpelledOut(j)->set_heads(0); }},
      {"kv_heads_positive", "model.llama.kv_heads", [](v1::JobSpec* j) { SpelledOut(j)->set_kv_heads(-2); }},
      {"heads_divide_hidden", "model.llama.heads", [](v1::JobSpec* j) { SpelledOut(j)->set_heads(6); }},
      {"head_size_even", "model.llama.heads", [](v1::JobSpec* j) { SpelledOut(j)->set_heads(128); }},
      {"kv_heads_divide_heads", "model.llama.kv_heads",
       [](v1::JobSpec* j) { SpelledOut(j)->set_kv_heads(3); }},
      {"rope_theta_positive", "model.llama.rope_theta",
       [](v1::JobSpec* j) { SpelledOut(j)->set_rope_theta(kInf); }},
      {"norm_epsilon_positive", "model.llama.norm_epsilon",
       [](v1::JobSpec* j) { SpelledOut(j)->set_norm_epsilon(-1e-5); }},
      {"head_size_range", "model.llama.head_size",
       [](v1::JobSpec* j) { SpelledOut(j)->set_head_size(2048); }},
      {"head_size_even", "model.llama.head_size", [](v1::JobSpec* j) { SpelledOut(j)->set_head_size(33); }},
      {"rope_scaling_range", "model.llama.rope_scaling.factor",
       [](v1::JobSpec* j) { SpelledOut(j)->mutable_rope_scaling()->set_factor(0.5); }},
      {"rope_scaling_range", "model.llama.rope_scaling.high_freq_factor",
       [](v1::JobSpec* j) {
         SpelledOut(j)->mutable_rope_scaling()->set_factor(8);
         SpelledOut(j)->mutable_rope_scaling()->set_low_freq_factor(4);
       }},
      {"rope_scaling_range", "model.llama.rope_scaling.original_positions",
       [](v1::JobSpec* j) {
         SpelledOut(j)->mutable_rope_scaling()->set_factor(8);
         SpelledOut(j)->mutable_rope_scaling()->set_original_positions(-1);
       }},
      {"positions_range", "model.llama.positions", [](v1::JobSpec* j) { SpelledOut(j)->set_positions(0); }},
      {"gpt2_vocab_size_range", "model.gpt2.vocab_size", [](v1::JobSpec* j) { Gpt2(j)->set_vocab_size(0); }},
      {"gpt2_hidden_size_range", "model.gpt2.hidden_size",
       [](v1::JobSpec* j) { Gpt2(j)->set_hidden_size(-8); }},
      {"gpt2_layers_range", "model.gpt2.layers", [](v1::JobSpec* j) { Gpt2(j)->set_layers(0); }},
      {"gpt2_heads_range", "model.gpt2.heads", [](v1::JobSpec* j) { Gpt2(j)->set_heads(4096); }},
      {"gpt2_positions_range", "model.gpt2.positions", [](v1::JobSpec* j) { Gpt2(j)->set_positions(0); }},
      {"gpt2_intermediate_size_range", "model.gpt2.intermediate_size",
       [](v1::JobSpec* j) { Gpt2(j)->set_intermediate_size(-1); }},
      {"gpt2_heads_divide_hidden", "model.gpt2.heads", [](v1::JobSpec* j) { Gpt2(j)->set_heads(6); }},
      {"gpt2_norm_epsilon_positive", "model.gpt2.norm_epsilon",
       [](v1::JobSpec* j) { Gpt2(j)->set_norm_epsilon(kNan); }},
  };
}

std::vector<BadCase> PluginCases() {
  const auto unit = [](v1::JobSpec* job, int index) { return Plugin(job)->mutable_units(index); };
  return {
      {"plugin_path_absolute", "model.plugin.path", [](v1::JobSpec* j) { Plugin(j)->clear_path(); }},
      {"plugin_path_absolute", "model.plugin.path", [](v1::JobSpec* j) { Plugin(j)->set_path("mine.so"); }},
      {"plugin_description_unresolved", "model.plugin.description",
       [](v1::JobSpec* j) {
         Plugin(j)->clear_units();
         j->mutable_model()->mutable_plugin()->set_description("mine.json");
       }},
      {"initial_not_for_plugins", "train.initial",
       [](v1::JobSpec* j) { Plugin(j), j->mutable_train()->mutable_initial()->set_std(0.01); }},
      {"plugin_vocab_size_range", "model.plugin.vocab_size",
       [](v1::JobSpec* j) { Plugin(j)->set_vocab_size(0); }},
      {"plugin_sequence_range", "model.plugin.max_sequence_length",
       [](v1::JobSpec* j) { Plugin(j)->set_max_sequence_length(-1); }},
      {"sequence_within_positions", "data.sequence_length",
       [](v1::JobSpec* j) { Plugin(j)->set_max_sequence_length(64); }},
      {"plugin_units_count", "model.plugin.units",
       [](v1::JobSpec* j) { Plugin(j)->mutable_units()->DeleteSubrange(0, 2); }},
      {"plugin_names", "model.plugin.units[1].name",
       [unit](v1::JobSpec* j) { unit(j, 1)->set_name("first"); }},
      {"plugin_names", "model.plugin.units[1].params[0].name",  // first.ffn + weight, first + ffn.weight.
       [unit](v1::JobSpec* j) {
         unit(j, 1)->set_name("first.ffn");
         j->mutable_model()->mutable_plugin()->mutable_units(0)->mutable_params(0)->set_name("ffn.weight");
       }},
      {"plugin_names", "model.plugin.units[2].params[0].name",
       [unit](v1::JobSpec* j) { unit(j, 2)->mutable_params(0)->set_name("a b"); }},
      {"plugin_params", "model.plugin.units[0].params[0].shape",
       [unit](v1::JobSpec* j) { unit(j, 0)->mutable_params(0)->set_shape(1, 0); }},
      {"plugin_params", "model.plugin.units[0].params[0].shape",
       [unit](v1::JobSpec* j) { unit(j, 0)->mutable_params(0)->set_shape(1, int64_t{1} << 40); }},
      {"plugin_params", "model.plugin.units",
       [unit](v1::JobSpec* j) { unit(j, 0)->mutable_params(0)->set_shape(1, int64_t{1} << 31); }},
      {"plugin_params", "model.plugin.units[0].params",
       [unit](v1::JobSpec* j) { unit(j, 0)->clear_params(); }},
      {"plugin_borrows", "model.plugin.units[1].tied_to",
       [unit](v1::JobSpec* j) { unit(j, 1)->set_tied_to("last"); }},
      {"plugin_borrows", "model.plugin.units[2].tied_to",
       [unit](v1::JobSpec* j) {
         unit(j, 1)->set_tied_to("first");
         j->mutable_model()->mutable_plugin()->mutable_units(2)->set_tied_to("first");
       }},
      {"plugin_numbers", "model.plugin.units[1].saved_values",
       [unit](v1::JobSpec* j) { unit(j, 1)->set_saved_values(-1); }},
      {"plugin_numbers", "model.plugin.units[0].output_values",
       [unit](v1::JobSpec* j) { unit(j, 0)->set_output_values(0); }},
      {"plugin_numbers", "model.plugin.units[2].flops_per_token",
       [unit](v1::JobSpec* j) { unit(j, 2)->set_flops_per_token(kNan); }},
  };
}

std::vector<BadCase> DataCases() {
  return {
      {"sequence_within_positions", "data.sequence_length",
       [](v1::JobSpec* j) { Gpt2(j)->set_positions(64); }},
      {"sequence_within_positions", "data.sequence_length",
       [](v1::JobSpec* j) { SpelledOut(j)->set_positions(127); }},
      {"sequence_within_positions", "data.sequence_length",
       [](v1::JobSpec* j) {
         j->mutable_model()->set_preset("llama3-1b");
         j->mutable_data()->set_sequence_length(8193);
       }},
      {"ignore_index_range", "data.ignore_index",
       [](v1::JobSpec* j) { j->mutable_data()->set_ignore_index(-100); }},
      {"validation_without_evaluation", "data.validation",
       [](v1::JobSpec* j) { j->mutable_data()->add_validation()->set_path("/data/valid.bin"); }},
      {"token_path_absolute", "data.validation[0].path",
       [](v1::JobSpec* j) {
         Evaluated(j);
         j->mutable_data()->mutable_validation(0)->set_path("valid.bin");
       }},
      {"data_required", "data", [](v1::JobSpec* j) { j->mutable_data()->clear_synthetic(); }},
      {"data_required", "data", [](v1::JobSpec* j) { TextFile(j), j->mutable_data()->mutable_synthetic(); }},
      {"sequence_length_range", "data.sequence_length",
       [](v1::JobSpec* j) { j->mutable_data()->set_sequence_length(0); }},
      {"token_files_few", "data.tokens",
       [](v1::JobSpec* j) {
         for (int i = 0; i < 513; ++i) TextFile(j);
       }},
      {"token_path_required", "data.tokens[1].path", [](v1::JobSpec* j) { TextFile(j)->set_path(""); }},
      {"token_path_absolute", "data.tokens[1].path",
       [](v1::JobSpec* j) { TextFile(j)->set_path("corpus.txt"); }},
      {"token_weight_positive", "data.tokens[1].weight", [](v1::JobSpec* j) { TextFile(j)->set_weight(-1); }},
      {"token_weight_positive", "data.tokens[1].weight",
       [](v1::JobSpec* j) { TextFile(j)->set_weight(kNan); }},
      {"token_type_known", "data.tokens[1].type",
       [](v1::JobSpec* j) { TextFile(j)->set_type(static_cast<v1::TokenType>(9)); }},
      {"text_fits_vocab", "data.tokens[1].type",
       [](v1::JobSpec* j) {
         TextFile(j)->set_type(v1::TOKEN_TYPE_U8);
         SpelledOut(j)->set_vocab_size(255);
       }},
      {"u16_below_vocab", "data.tokens[1].type",
       [](v1::JobSpec* j) {
         TextFile(j)->set_type(v1::TOKEN_TYPE_U16);
         j->mutable_data()->mutable_tokens(0)->set_type(v1::TOKEN_TYPE_U32);
         SpelledOut(j)->set_vocab_size(65537);
       }},
      {"synthetic_vocab_range", "data.synthetic.vocab",
       [](v1::JobSpec* j) { j->mutable_data()->mutable_synthetic()->set_vocab(257); }},
      {"synthetic_vocab_range", "data.synthetic.vocab",
       [](v1::JobSpec* j) { j->mutable_data()->mutable_synthetic()->set_vocab(-1); }},
  };
}

std::vector<BadCase> TrainCases() {
  return {
      {"steps_range", "train.steps", [](v1::JobSpec* j) { j->mutable_train()->set_steps(0); }},
      {"steps_range", "train.steps", [](v1::JobSpec* j) { j->mutable_train()->clear_steps(); }},
      {"micro_batch_range", "train.micro_batch",
       [](v1::JobSpec* j) { j->mutable_train()->set_micro_batch(-4); }},
      {"micro_batch_tokens", "train.micro_batch",
       [](v1::JobSpec* j) {
         j->mutable_data()->set_sequence_length(1 << 20);
         j->mutable_train()->set_micro_batch(32);
         j->mutable_train()->set_global_batch(128);
       }},
      {"global_batch_range", "train.global_batch",
       [](v1::JobSpec* j) { j->mutable_train()->set_global_batch(-16); }},
      {"global_batch_divisible", "train.global_batch",
       [](v1::JobSpec* j) { j->mutable_train()->set_global_batch(24); }},
      {"accumulation_bounded", "train.global_batch",
       [](v1::JobSpec* j) { j->mutable_train()->set_global_batch(16 * 5462); }},
      {"seed_not_negative", "train.seed", [](v1::JobSpec* j) { j->mutable_train()->set_seed(-1); }},
      {"initial_std_positive", "train.initial.std",
       [](v1::JobSpec* j) { j->mutable_train()->mutable_initial()->set_std(0); }},
      {"initial_std_positive", "train.initial.embedding_std",
       [](v1::JobSpec* j) { j->mutable_train()->mutable_initial()->set_embedding_std(kNan); }},
      {"warmup_not_negative", "schedule.cosine.warmup_steps",
       [](v1::JobSpec* j) { j->mutable_schedule()->mutable_cosine()->set_warmup_steps(-1); }},
      {"warmup_below_steps", "schedule.constant.warmup_steps",
       [](v1::JobSpec* j) { j->mutable_schedule()->mutable_constant()->set_warmup_steps(200); }},
      {"warmup_below_steps", "schedule.linear.warmup_steps",
       [](v1::JobSpec* j) { j->mutable_schedule()->mutable_linear()->set_warmup_steps(500); }},
      {"min_lr_ratio_range", "schedule.cosine.min_lr_ratio",
       [](v1::JobSpec* j) { j->mutable_schedule()->mutable_cosine()->set_min_lr_ratio(1.5); }},
      {"min_lr_ratio_range", "schedule.linear.min_lr_ratio",
       [](v1::JobSpec* j) { j->mutable_schedule()->mutable_linear()->set_min_lr_ratio(kNan); }},
      {"evaluation_interval_positive", "train.evaluation.every_steps",
       [](v1::JobSpec* j) { Evaluated(j)->mutable_evaluation()->set_every_steps(-1); }},
      {"evaluation_samples_positive", "train.evaluation.samples",
       [](v1::JobSpec* j) { Evaluated(j)->mutable_evaluation()->set_samples(-1); }},
      {"evaluation_without_data", "train.evaluation",
       [](v1::JobSpec* j) { Evaluated(j), j->mutable_data()->clear_validation(); }},
      {"frozen_matches", "train.frozen[1]",
       [](v1::JobSpec* j) {
         j->mutable_train()->add_frozen("embedding.*");
         j->mutable_train()->add_frozen("layers.0.*");
       }},
      {"frozen_matches", "train.frozen", [](v1::JobSpec* j) { j->mutable_train()->add_frozen("*"); }},
      {"decay_steps_range", "schedule.wsd.decay_steps",
       [](v1::JobSpec* j) { j->mutable_schedule()->mutable_wsd()->set_warmup_steps(10); }},
      {"decay_steps_range", "schedule.wsd.decay_steps",
       [](v1::JobSpec* j) {
         j->mutable_schedule()->mutable_wsd()->set_warmup_steps(10);
         j->mutable_schedule()->mutable_wsd()->set_decay_steps(191);
       }},
  };
}

std::vector<BadCase> OptimizerCases() {
  return {
      {"lr_positive", "optimizer.adamw.lr",
       [](v1::JobSpec* j) { j->mutable_optimizer()->mutable_adamw()->set_lr(-1e-3); }},
      {"lr_positive", "optimizer.adamw.lr",
       [](v1::JobSpec* j) { j->mutable_optimizer()->mutable_adamw()->set_lr(kNan); }},
      {"lr_is_large", "optimizer.adamw.lr",
       [](v1::JobSpec* j) { j->mutable_optimizer()->mutable_adamw()->set_lr(3); }},
      {"betas_are_two", "optimizer.adamw.betas",
       [](v1::JobSpec* j) { j->mutable_optimizer()->mutable_adamw()->add_betas(0.9); }},
      {"betas_range", "optimizer.adamw.betas[1]",
       [](v1::JobSpec* j) {
         j->mutable_optimizer()->mutable_adamw()->add_betas(0.9);
         j->mutable_optimizer()->mutable_adamw()->add_betas(1.0);
       }},
      {"eps_positive", "optimizer.adamw.eps",
       [](v1::JobSpec* j) { j->mutable_optimizer()->mutable_adamw()->set_eps(-1e-8); }},
      {"weight_decay_not_negative", "optimizer.adamw.weight_decay",
       [](v1::JobSpec* j) { j->mutable_optimizer()->mutable_adamw()->set_weight_decay(-0.1); }},
      {"clip_norm_not_negative", "optimizer.clip_norm",
       [](v1::JobSpec* j) { j->mutable_optimizer()->set_clip_norm(kInf); }},
      {"one_optimizer", "optimizer", [](v1::JobSpec* j) { Sgd(j), j->mutable_optimizer()->mutable_adamw(); }},
      {"sgd_lr_positive", "optimizer.sgd.lr", [](v1::JobSpec* j) { Sgd(j)->set_lr(0); }},
      {"momentum_range", "optimizer.sgd.momentum", [](v1::JobSpec* j) { Sgd(j)->set_momentum(1); }},
      {"nesterov_needs_momentum", "optimizer.sgd.nesterov",
       [](v1::JobSpec* j) { Sgd(j)->set_nesterov(true); }},
      {"sgd_weight_decay_not_negative", "optimizer.sgd.weight_decay",
       [](v1::JobSpec* j) { Sgd(j)->set_weight_decay(kInf); }},
      {"groups_sound", "optimizer.groups[0].params",
       [](v1::JobSpec* j) { j->mutable_optimizer()->add_groups()->set_lr_scale(2); }},
      {"groups_sound", "optimizer.groups[0].params[1]",
       [](v1::JobSpec* j) {
         v1::ParamGroup* group = j->mutable_optimizer()->add_groups();
         group->add_params("*norm*");
         group->add_params("*bias");
       }},
      {"groups_sound", "optimizer.groups[0].lr_scale",
       [](v1::JobSpec* j) {
         v1::ParamGroup* group = j->mutable_optimizer()->add_groups();
         group->add_params("*norm*");
         group->set_lr_scale(-1);
       }},
  };
}

void SetMoments(v1::JobSpec* job, v1::DType dtype) { job->mutable_precision()->set_moments(dtype); }
void SetMainGrads(v1::JobSpec* job, v1::DType dtype) { job->mutable_precision()->set_main_grads(dtype); }
void SetGradComm(v1::JobSpec* job, v1::DType dtype) { job->mutable_precision()->set_grad_comm(dtype); }

std::vector<BadCase> PrecisionCases() {
  return {
      {"dtype_known", "precision.compute",
       [](v1::JobSpec* j) { j->mutable_precision()->set_compute(static_cast<v1::DType>(7)); }},
      {"main_params_fp32", "precision.main_params",
       [](v1::JobSpec* j) { j->mutable_precision()->set_main_params(v1::DTYPE_BF16); }},
      {"dtype_known", "precision.moments", [](v1::JobSpec* j) { SetMoments(j, static_cast<v1::DType>(9)); }},
      {"main_params_fp32", "precision.main_params",
       [](v1::JobSpec* j) { j->mutable_precision()->set_main_params(v1::DTYPE_FP16); }},
      {"main_grads_not_fp16", "precision.main_grads",
       [](v1::JobSpec* j) { SetMainGrads(j, v1::DTYPE_FP16); }},
      {"grad_comm_not_fp16", "precision.grad_comm", [](v1::JobSpec* j) { SetGradComm(j, v1::DTYPE_FP16); }},
      {"moments_not_fp16", "precision.moments", [](v1::JobSpec* j) { SetMoments(j, v1::DTYPE_FP16); }},
      {"main_grads_bf16_needs_shards", "precision.main_grads",
       [](v1::JobSpec* j) {
         SetMainGrads(j, v1::DTYPE_BF16);
         j->mutable_fsdp()->set_strategy(v1::STRATEGY_OPTIM);
       }},
      {"main_grads_bf16_without_outer", "precision.main_grads",
       [](v1::JobSpec* j) {
         SetMainGrads(j, v1::DTYPE_BF16);
         j->mutable_fsdp()->mutable_outer()->set_size(2);
       }},
      {"grad_comm_bf16_needs_shards", "precision.grad_comm",
       [](v1::JobSpec* j) {
         SetGradComm(j, v1::DTYPE_BF16);
         j->mutable_fsdp()->set_strategy(v1::STRATEGY_NO_SHARD);
       }},
      {"fp16_on_cpu_is_slow", "precision.compute",
       [](v1::JobSpec* j) { j->mutable_precision()->set_compute(v1::DTYPE_FP16); }},
      {"loss_scale_range", "precision.loss_scale.initial",
       [](v1::JobSpec* j) {
         j->mutable_precision()->set_compute(v1::DTYPE_FP16);
         j->mutable_resources()->set_device(v1::DEVICE_CUDA);
         j->mutable_precision()->mutable_loss_scale()->set_initial(-1);
       }},
      {"loss_scale_range", "precision.loss_scale.growth_interval",
       [](v1::JobSpec* j) {
         j->mutable_precision()->set_compute(v1::DTYPE_FP16);
         j->mutable_resources()->set_device(v1::DEVICE_CUDA);
         j->mutable_precision()->mutable_loss_scale()->set_growth_interval(-1);
       }},
      {"loss_scale_without_fp16", "precision.loss_scale",
       [](v1::JobSpec* j) { j->mutable_precision()->mutable_loss_scale()->set_initial(1024); }},
  };
}

std::vector<BadCase> FsdpCases() {
  return {
      {"strategy_known", "fsdp.strategy",
       [](v1::JobSpec* j) { j->mutable_fsdp()->set_strategy(static_cast<v1::Strategy>(11)); }},
      {"prefetch_not_negative", "fsdp.prefetch_bytes",
       [](v1::JobSpec* j) { j->mutable_fsdp()->set_prefetch_bytes(-1); }},
      {"prefetch_without_gathers", "fsdp.prefetch_bytes",
       [](v1::JobSpec* j) {
         j->mutable_fsdp()->set_strategy(v1::STRATEGY_NO_SHARD);
         j->mutable_fsdp()->set_prefetch_bytes(4096);
       }},
      {"prefetch_above_model", "fsdp.prefetch_bytes",
       [](v1::JobSpec* j) { j->mutable_fsdp()->set_prefetch_bytes(int64_t{1} << 40); }},
      {"recompute_known", "fsdp.recompute",
       [](v1::JobSpec* j) { j->mutable_fsdp()->set_recompute(static_cast<v1::Recompute>(4)); }},
      {"recompute_layers_range", "fsdp.recompute_layers",
       [](v1::JobSpec* j) { j->mutable_fsdp()->set_recompute_layers(-1); }},
      {"recompute_layers_of_none", "fsdp.recompute_layers",
       [](v1::JobSpec* j) {
         j->mutable_fsdp()->set_recompute(v1::RECOMPUTE_NONE);
         j->mutable_fsdp()->set_recompute_layers(1);
       }},
      {"recompute_layers_above_model", "fsdp.recompute_layers",
       [](v1::JobSpec* j) { j->mutable_fsdp()->set_recompute_layers(5); }},
      {"keep_gathered_without_params", "fsdp.keep_gathered",
       [](v1::JobSpec* j) {
         j->mutable_fsdp()->set_keep_gathered(true);
         j->mutable_fsdp()->set_strategy(v1::STRATEGY_OPTIM);
       }},
      {"prefetch_without_gathers", "fsdp.prefetch_bytes",
       [](v1::JobSpec* j) {
         j->mutable_fsdp()->set_keep_gathered(true);
         j->mutable_fsdp()->set_prefetch_bytes(4096);
       }},
      {"outer_size_divides", "fsdp.outer.size",
       [](v1::JobSpec* j) { j->mutable_fsdp()->mutable_outer()->set_size(3); }},
      {"outer_size_divides", "fsdp.outer.size",
       [](v1::JobSpec* j) { j->mutable_fsdp()->mutable_outer()->set_size(-1); }},
      // Regression test: the prefetch rule, which runs first, divided by zero ranks.
      {"outer_size_divides", "fsdp.outer.size",
       [](v1::JobSpec* j) {
         j->mutable_fsdp()->mutable_outer()->set_size(4096);
         j->mutable_fsdp()->set_prefetch_bytes(1);
       }},
      {"outer_without_shards", "fsdp.outer.size",
       [](v1::JobSpec* j) {
         j->mutable_fsdp()->mutable_outer()->set_size(2);
         j->mutable_fsdp()->set_strategy(v1::STRATEGY_NO_SHARD);
       }},
      {"outer_strategy_known", "fsdp.outer.strategy",
       [](v1::JobSpec* j) { j->mutable_fsdp()->mutable_outer()->set_strategy(v1::STRATEGY_OPTIM_GRADS); }},
      {"outer_optim_needs_params", "fsdp.outer.strategy",
       [](v1::JobSpec* j) {
         j->mutable_fsdp()->mutable_outer()->set_size(2);
         j->mutable_fsdp()->mutable_outer()->set_strategy(v1::STRATEGY_OPTIM);
         j->mutable_fsdp()->set_strategy(v1::STRATEGY_OPTIM_GRADS);
       }},
      {"outer_strategy_without_axis", "fsdp.outer.strategy",
       [](v1::JobSpec* j) { j->mutable_fsdp()->mutable_outer()->set_strategy(v1::STRATEGY_OPTIM); }},
  };
}

std::vector<BadCase> RuntimeCases() {
  return {
      {"nodes_range", "resources.nodes", [](v1::JobSpec* j) { j->mutable_resources()->set_nodes(-1); }},
      {"ranks_per_node_range", "resources.ranks_per_node",
       [](v1::JobSpec* j) { j->mutable_resources()->set_ranks_per_node(1 << 20); }},
      {"world_bounded", "resources",
       [](v1::JobSpec* j) {
         j->mutable_resources()->set_nodes(16384);
         j->mutable_resources()->set_ranks_per_node(8);
       }},
      {"device_known", "resources.device",
       [](v1::JobSpec* j) { j->mutable_resources()->set_device(static_cast<v1::Device>(5)); }},
      {"memory_budget_positive", "resources.memory_budget_bytes",
       [](v1::JobSpec* j) { j->mutable_resources()->set_memory_budget_bytes(-1); }},
      {"node_selector_is_one", "resources.node_selector",
       [](v1::JobSpec* j) { j->mutable_resources()->set_node_selector("gpu in (h100)"); }},
      {"max_attempts_range", "restart.max_attempts",
       [](v1::JobSpec* j) { j->mutable_restart()->set_max_attempts(101); }},
      {"hang_seconds_range", "restart.hang_seconds",
       [](v1::JobSpec* j) { j->mutable_restart()->set_hang_seconds(4); }},
      {"hang_seconds_range", "restart.hang_seconds",
       [](v1::JobSpec* j) { j->mutable_restart()->set_hang_seconds(-1); }},
      {"elastic_min_ranks_range", "restart.elastic.min_ranks",
       [](v1::JobSpec* j) { Elastic(j)->set_min_ranks(4); }},
      {"elastic_wait_range", "restart.elastic.wait_seconds",
       [](v1::JobSpec* j) { Elastic(j)->set_wait_seconds(86401); }},
      {"elastic_without_checkpoint", "restart.elastic",
       [](v1::JobSpec* j) { Elastic(j), j->mutable_checkpoint()->set_every_steps(0); }},
      {"elastic_nothing_smaller", "restart.elastic.min_ranks",
       [](v1::JobSpec* j) { Elastic(j)->set_min_ranks(3); }},
      {"priority_range", "priority", [](v1::JobSpec* j) { j->set_priority(1001); }},
      {"priority_range", "priority", [](v1::JobSpec* j) { j->set_priority(-1001); }},
      {"restart_without_checkpoint", "restart.max_attempts",
       [](v1::JobSpec* j) { j->mutable_restart()->set_max_attempts(3); }},
      {"restart_without_checkpoint", "restart.max_attempts",
       [](v1::JobSpec* j) {
         j->mutable_checkpoint()->set_dir("/runs/1");
         j->mutable_restart()->set_max_attempts(3);
       }},
      {"trace_steps_count", "telemetry.trace_steps",
       [](v1::JobSpec* j) {
         j->mutable_train()->set_steps(100);
         for (int step = 1; step <= 17; ++step) j->mutable_telemetry()->add_trace_steps(step);
       }},
      {"trace_steps_range", "telemetry.trace_steps[1]",
       [](v1::JobSpec* j) {
         j->mutable_telemetry()->add_trace_steps(1);
         j->mutable_telemetry()->add_trace_steps(j->train().steps() + 1);
       }},
      {"trace_steps_range", "telemetry.trace_steps[0]",
       [](v1::JobSpec* j) { j->mutable_telemetry()->add_trace_steps(0); }},
      {"trace_steps_ascend", "telemetry.trace_steps[1]",
       [](v1::JobSpec* j) {
         j->mutable_telemetry()->add_trace_steps(2);
         j->mutable_telemetry()->add_trace_steps(2);
       }},
      {"few_parameters_per_rank", "resources",
       [](v1::JobSpec* j) {
         j->mutable_resources()->set_nodes(128);
         j->mutable_train()->clear_global_batch();
       }},
  };
}

// Explicit values are checked; they were silently replaced by defaults once.
std::vector<BadCase> ZeroCases() {
  return {
      {"kv_heads_positive", "model.llama.kv_heads", [](v1::JobSpec* j) { SpelledOut(j)->set_kv_heads(0); }},
      {"head_size_range", "model.llama.head_size", [](v1::JobSpec* j) { SpelledOut(j)->set_head_size(0); }},
      {"rope_theta_positive", "model.llama.rope_theta",
       [](v1::JobSpec* j) { SpelledOut(j)->set_rope_theta(0); }},
      {"norm_epsilon_positive", "model.llama.norm_epsilon",
       [](v1::JobSpec* j) { SpelledOut(j)->set_norm_epsilon(0); }},
      {"gpt2_intermediate_size_range", "model.gpt2.intermediate_size",
       [](v1::JobSpec* j) { Gpt2(j)->set_intermediate_size(0); }},
      {"gpt2_norm_epsilon_positive", "model.gpt2.norm_epsilon",
       [](v1::JobSpec* j) { Gpt2(j)->set_norm_epsilon(0); }},
      {"token_weight_positive", "data.tokens[1].weight", [](v1::JobSpec* j) { TextFile(j)->set_weight(0); }},
      {"synthetic_vocab_range", "data.synthetic.vocab",
       [](v1::JobSpec* j) { j->mutable_data()->mutable_synthetic()->set_vocab(0); }},
      {"micro_batch_range", "train.micro_batch",
       [](v1::JobSpec* j) { j->mutable_train()->set_micro_batch(0); }},
      {"global_batch_range", "train.global_batch",
       [](v1::JobSpec* j) { j->mutable_train()->set_global_batch(0); }},
      {"evaluation_samples_positive", "train.evaluation.samples",
       [](v1::JobSpec* j) { Evaluated(j)->mutable_evaluation()->set_samples(0); }},
      {"lr_positive", "optimizer.adamw.lr",
       [](v1::JobSpec* j) { j->mutable_optimizer()->mutable_adamw()->set_lr(0); }},
      {"eps_positive", "optimizer.adamw.eps",
       [](v1::JobSpec* j) { j->mutable_optimizer()->mutable_adamw()->set_eps(0); }},
      {"outer_size_divides", "fsdp.outer.size",
       [](v1::JobSpec* j) { j->mutable_fsdp()->mutable_outer()->set_size(0); }},
      {"nodes_range", "resources.nodes", [](v1::JobSpec* j) { j->mutable_resources()->set_nodes(0); }},
      {"ranks_per_node_range", "resources.ranks_per_node",
       [](v1::JobSpec* j) { j->mutable_resources()->set_ranks_per_node(0); }},
      {"memory_budget_positive", "resources.memory_budget_bytes",
       [](v1::JobSpec* j) { j->mutable_resources()->set_memory_budget_bytes(0); }},
      {"max_attempts_range", "restart.max_attempts",
       [](v1::JobSpec* j) { j->mutable_restart()->set_max_attempts(0); }},
  };
}

std::vector<BadCase> AllCases() {
  std::vector<BadCase> all = ModelCases();
  for (const auto& part : {PluginCases(), DataCases(), TrainCases(), OptimizerCases(), PrecisionCases(),
                           FsdpCases(), RuntimeCases(), ZeroCases()})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

std::string Ids(const Violations& found) {
  std::string text;
  for (const Violation& v : found) text += v.rule + " at " + v.field + ": " + v.reason + "\n";
  return text;
}

TEST(Rules, AcceptsValidSpec) {
  EXPECT_TRUE(CheckJob(GoodJob()).empty()) << Ids(CheckJob(GoodJob()));
  v1::JobSpec spelled = GoodJob();
  SpelledOut(&spelled);
  EXPECT_TRUE(CheckJob(spelled).empty()) << Ids(CheckJob(spelled));
  v1::JobSpec files = GoodJob();
  TextFile(&files)->set_type(v1::TOKEN_TYPE_U8);
  EXPECT_TRUE(CheckJob(files).empty()) << Ids(CheckJob(files));
  v1::JobSpec bf16 = GoodJob();
  bf16.mutable_precision()->set_compute(v1::DTYPE_BF16);
  bf16.mutable_fsdp()->set_strategy(v1::STRATEGY_NO_SHARD);
  EXPECT_TRUE(CheckJob(bf16).empty()) << Ids(CheckJob(bf16));
  v1::JobSpec gpt2 = GoodJob();
  Gpt2(&gpt2);
  Sgd(&gpt2)->set_momentum(0.9);
  Evaluated(&gpt2)->add_frozen("embedding.*");
  EXPECT_TRUE(CheckJob(gpt2).empty()) << Ids(CheckJob(gpt2));
  v1::JobSpec hfsdp = GoodJob();
  hfsdp.mutable_fsdp()->mutable_outer()->set_size(2);
  hfsdp.mutable_fsdp()->mutable_outer()->set_strategy(v1::STRATEGY_OPTIM);
  hfsdp.mutable_precision()->set_grad_comm(v1::DTYPE_BF16);
  hfsdp.mutable_precision()->set_moments(v1::DTYPE_BF16);
  EXPECT_TRUE(CheckJob(hfsdp).empty()) << Ids(CheckJob(hfsdp));
}

TEST(Rules, EachCaseViolatesOnlyItsRule) {
  for (const BadCase& bad : AllCases()) {
    v1::JobSpec job = GoodJob();
    bad.spoil(&job);
    const Violations found = CheckJob(job);
    ASSERT_EQ(found.size(), 1u) << "for " << bad.rule << ":\n" << Ids(found);
    EXPECT_EQ(found[0].rule, bad.rule);
    EXPECT_EQ(found[0].field, bad.field) << bad.rule;
    EXPECT_GT(found[0].reason.size(), 15u) << bad.rule;
    EXPECT_GT(found[0].fix.size(), 10u) << bad.rule;
    EXPECT_EQ(found[0].level == ViolationLevel::kAdjust, !found[0].after.empty()) << bad.rule;
  }
}

// First words of rule ids that are covered by <section>_rules_test.
const std::set<std::string> kElsewhere = {
    "bad",        "deterministic", "document", "documents", "epochs",  "mask",   "packing", "too",  "env",
    "checkpoint", "experts",       "fp8",      "latent",    "offload", "memory", "package", "lora", "peft"};

TEST(Rules, CoversEveryRule) {
  std::set<std::string> broken;
  for (const BadCase& bad : AllCases()) broken.insert(bad.rule);
  for (const RuleText& rule : AllRules()) {
    if (rule.id == "memory_over_budget") break;  // Rows from here on are checked by docs/rules.py.
    if (kElsewhere.count(rule.id.substr(0, rule.id.find('_'))) > 0) continue;
    if (rule.id.find("parallel") != std::string::npos) continue;  // parallel_rules_test
    EXPECT_EQ(broken.count(rule.id), 1u) << rule.id << " has no test case";
    EXPECT_GT(rule.text.size(), 10u) << rule.id;
  }
}

TEST(Rules, ReportsAllViolations) {
  std::set<std::string> ids;
  for (const Violation& v : CheckJob(v1::JobSpec())) ids.insert(v.rule);
  EXPECT_EQ(ids, (std::set<std::string>{"name_is_label", "model_required", "data_required",
                                        "sequence_length_range", "steps_range"}));
}

TEST(Rules, SuggestsTwoNearestValidBatches) {
  v1::JobSpec job = GoodJob();
  job.mutable_train()->set_global_batch(24);
  EXPECT_EQ(CheckJob(job)[0].fix, "write global_batch: 16 or 32");
  job.mutable_train()->set_global_batch(15);
  EXPECT_EQ(CheckJob(job)[0].fix, "write global_batch: 16, or use fewer ranks");
}

TEST(Rules, OmitsConsequences) {
  v1::JobSpec job = GoodJob();
  job.mutable_resources()->set_nodes(-3);
  job.mutable_train()->set_global_batch(17);  // Not checkable without the ranks.
  const Violations found = CheckJob(job);
  ASSERT_EQ(found.size(), 1u) << Ids(found);
  EXPECT_EQ(found[0].rule, "nodes_range");
}

TEST(Rules, AcceptsSeedZero) {
  v1::JobSpec job = GoodJob();
  job.mutable_train()->set_seed(0);
  EXPECT_TRUE(CheckJob(job).empty()) << Ids(CheckJob(job));
}

// Every required field is unparsed; none is reported as missing.
TEST(Rules, IgnoresUnreadFields) {
  const Violations none = CheckJob(
      v1::JobSpec(), {"name", "model.presett", "data.tokens", "data.sequence_length", "train.steps"});
  EXPECT_TRUE(none.empty()) << Ids(none);
  v1::JobSpec job = GoodJob();
  job.mutable_train()->clear_micro_batch();
  job.mutable_train()->set_global_batch(18);  // Not checkable without micro_batch.
  job.mutable_optimizer()->mutable_adamw()->set_lr(-1);
  const Violations found = CheckJob(job, {"train.micro_batch", "resources.device"});
  ASSERT_EQ(found.size(), 1u) << Ids(found);
  EXPECT_EQ(found[0].rule, "lr_positive");
}

}  // namespace
}  // namespace fsdpd
