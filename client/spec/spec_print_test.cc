#include "client/spec/spec_print.h"

#include <gtest/gtest.h>

#include <cmath>

#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {
namespace {

v1::JobSpec Spec() {
  v1::JobSpec spec;
  spec.set_name("tiny");
  spec.mutable_model()->set_preset("tiny");
  spec.mutable_data()->add_tokens()->set_path("/data/a b.txt");
  spec.mutable_data()->mutable_tokens(0)->set_type(v1::TOKEN_TYPE_U8);
  spec.mutable_data()->add_tokens();
  spec.mutable_optimizer()->mutable_adamw()->set_lr(3e-4);
  spec.mutable_optimizer()->mutable_adamw()->add_betas(0.9);
  spec.mutable_optimizer()->mutable_adamw()->add_betas(0.95);
  spec.mutable_optimizer()->mutable_adamw()->set_weight_decay(0);
  spec.mutable_schedule()->mutable_constant();
  spec.mutable_fsdp()->set_strategy(v1::STRATEGY_OPTIM_GRADS_PARAMS);
  spec.mutable_fsdp()->set_prefetch_bytes(1610612736);
  spec.mutable_telemetry()->set_memory_snapshot(true);
  return spec;
}

// Regression: PyYAML, which implements YAML 1.1, read 1e+04 as a string.
TEST(SpecPrint, ExponentsHaveDecimalPoint) {
  v1::JobSpec spec;
  spec.mutable_optimizer()->mutable_adamw()->set_lr(1e-8);
  spec.mutable_optimizer()->mutable_adamw()->set_eps(1.25e-7);
  EXPECT_NE(ToYaml(spec).find("lr: 1.0e-08"), std::string::npos) << ToYaml(spec);
  EXPECT_NE(ToYaml(spec).find("eps: 1.25e-07"), std::string::npos) << ToYaml(spec);
}

TEST(SpecPrint, PrintsBlockYaml) {
  EXPECT_EQ(ToYaml(Spec()), R"(name: tiny
model:
  preset: tiny
data:
  tokens:
    - path: "/data/a b.txt"
      type: u8
    - {}
optimizer:
  adamw:
    lr: 0.0003
    betas: [0.9, 0.95]
    weight_decay: 0
schedule:
  constant: {}
fsdp:
  strategy: optim_grads_params
  prefetch_bytes: 1610612736
telemetry:
  memory_snapshot: true
)");
}

TEST(SpecPrint, PrintsJson) {
  v1::JobSpec spec;
  spec.set_name("tiny");
  spec.mutable_fsdp()->set_strategy(v1::STRATEGY_NO_SHARD);
  spec.mutable_schedule()->mutable_constant();
  EXPECT_EQ(ToJson(spec),
            "{\n  \"name\": \"tiny\",\n  \"schedule\": {\n    \"constant\": {}\n  },\n"
            "  \"fsdp\": {\n    \"strategy\": \"no_shard\"\n  }\n}\n");
}

TEST(SpecPrint, QuotesAmbiguousStrings) {
  for (const char* text : {"true", "12", "1e4", "auto", "~", "a: b", "-x", "Null", "a#b"}) {
    v1::JobSpec spec;
    spec.set_name(text);
    EXPECT_EQ(ToYaml(spec), std::string("name: \"") + text + "\"\n");
  }
}

TEST(SpecPrint, PrintsEmptyMessage) {
  EXPECT_EQ(ToYaml(v1::JobSpec()), "{}\n");
  EXPECT_EQ(ToJson(v1::JobSpec()), "{}\n");
}

TEST(SpecPrint, DataIncludesFieldsWithoutPresence) {
  v1::TokenFile file;
  EXPECT_EQ(ToYamlData(file), "path: \"\"\ntype: auto\nmask: \"\"\n") << "weight is unset";
  file.set_weight(0);
  EXPECT_EQ(ToJsonLine(file), "{\"path\": \"\", \"weight\": 0, \"type\": \"auto\", \"mask\": \"\"}");
  EXPECT_EQ(ToJsonData(v1::Checkpoint()),
            "{\n  \"dir\": \"\",\n  \"every_steps\": 0,\n  \"format\": \"\",\n  \"load\": \"\",\n"
            "  \"keep_every\": 0,\n  \"every_minutes\": 0,\n  \"export\": \"\"\n}\n");
  EXPECT_EQ(ToYamlData(v1::Telemetry()), "trace_steps: []\nmemory_snapshot: false\n");
  file.set_weight(std::nan(""));
  EXPECT_NE(ToJsonLine(file).find("\"weight\": \"NaN\""), std::string::npos);
  EXPECT_NE(ToYamlData(file).find("weight: .nan"), std::string::npos);
}

}  // namespace
}  // namespace fsdpd
