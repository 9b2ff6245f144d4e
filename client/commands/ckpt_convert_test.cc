// Tests of `ckpt convert` and `ckpt diff`: flags, output and exit codes. tests/parity tests that transformers
// and torch can read the output.
#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <sstream>

#include "base/spec_text/renamed_fields.h"
#include "base/temp_dir.h"
#include "client/connect/outcome.h"
#include "client/testing/command_case.h"
#include "fsdp/checkpoint/dcp/dcp_writer.h"
#include "fsdp/checkpoint/format/pickle_writer.h"
#include "fsdp/checkpoint/format/torch_save.h"
#include "fsdp/checkpoint/hf/hf_store.h"
#include "fsdp/checkpoint/names/adapter_names.h"
#include "fsdp/checkpoint/names/tensor_names.h"
#include "fsdp/checkpoint/testing/small_checkpoint.h"
#include "fsdp/plan/spec/testing/small_models.h"

namespace fsdpd {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kConfig[] = R"({
  "model_type": "llama",
  "bos_token_id": 1,
  "hidden_size": 8,
  "intermediate_size": 12,
  "num_attention_heads": 2,
  "num_hidden_layers": 1,
  "vocab_size": 32,
  "torch_dtype": "float64"
})";
constexpr char kSpec[] =
    "name: x\nmodel:\n  llama: {vocab_size: 32, hidden_size: 8, intermediate_size: 12, layers: 1, heads: "
    "2}\n";

ModelConfig Model() {
  LlamaConfig llama = SmallLlama();
  llama.layers = 1;
  llama.kv_heads = llama.heads;
  return llama;
}

class CkptConvertTest : public CommandCase {
 protected:
  CkptConvertTest() {
    WriteHf(hf_, [](TestTensor*) {});
    WriteFileOf(dir_.File("config.json"), kConfig);
    WriteFileOf(dir_.File("job.yaml"), kSpec);
  }

  template <typename Change>
  void WriteHf(const std::string& directory, Change change) {
    std::vector<TestTensor> tensors;
    std::vector<StoredTensor> stored;
    for (const NamedParam& param : ParamsOf(Model(), Naming::kTransformers)) {
      tensors.push_back(MakeTestTensor(param.theirs, "bfloat16", param.shape));
      change(&tensors.back());
      stored.push_back({param.theirs, tensors.back().type, tensors.back().shape,
                        static_cast<int64_t>(tensors.back().numbers.size())});
    }
    fs::create_directory(directory);
    const auto writer = MakeHfWriter(directory, stored, 1 << 20, kConfig);
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (size_t i = 0; i < tensors.size(); ++i) {
      ASSERT_TRUE((*writer)->Write(i, tensors[i].numbers.data()).ok());
    }
    ASSERT_TRUE((*writer)->Finish().ok());
  }

  int Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "ckpt");
    return RunCommand(arguments);
  }

  void MakeNative() { ASSERT_EQ(Run({"convert", hf_, native_, "--to", "fsdp_dtensor"}), kExitOk) << err_; }

  // Like the checkpoint of a job, with its spec inside.
  void MakeJobs(const std::string& spec) { MakeJobs(spec, ParamsOf(Model(), Naming::kOurs)); }

  void MakeJobs(const std::string& spec, const std::vector<NamedParam>& params) {
    std::vector<TestTensor> tensors;
    std::vector<DcpPiece> pieces;
    for (const NamedParam& param : params) {
      tensors.push_back(MakeTestTensor("model.module." + param.ours, "float32", param.shape));
      pieces.push_back({tensors.back().name,
                        tensors.back().type,
                        param.shape,
                        {std::vector<int64_t>(param.shape.size()), param.shape}});
    }
    PickleWriter writer;
    writer.Text(spec);
    const DcpFile file =
        LayOut(DcpFileName(0), std::move(pieces), {{"fsdpd.spec", TorchSaved(writer.Take())}});
    fs::remove_all(native_);
    fs::create_directory(native_);
    const auto written = DcpWriter::Create(native_, file);
    ASSERT_TRUE(written.ok()) << written.status();
    for (size_t i = 0; i < tensors.size(); ++i) {
      ASSERT_TRUE((*written)->Write(i, tensors[i].numbers.data()).ok());
    }
    const auto sum = (*written)->Finish();
    ASSERT_TRUE(sum.ok());
    ASSERT_TRUE(CommitDcp(native_, {&file}, {*sum}).ok());
  }

  TempDir dir_;
  const std::string hf_ = dir_.File("hf"), native_ = dir_.File("native"), out_directory_ = dir_.File("out");
};

TEST_F(CkptConvertTest, RoundTripIsLossless) {
  MakeNative();
  EXPECT_EQ(out_, absl::StrCat(native_, ": 12 tensors, 4.22 KiB in 1 file, float32\n"));
  EXPECT_EQ(err_, "");
  EXPECT_EQ(Run({"convert", native_, out_directory_, "--to", "hf", "--config", hf_ + "/config.json"}),
            kExitOk)
      << err_;
  EXPECT_EQ(Run({"diff", hf_, out_directory_}), kExitOk) << out_;
  EXPECT_EQ(out_, "equal: 12 tensors and other entries\n");
}

TEST_F(CkptConvertTest, RewritesConfigWithDtype) {
  MakeNative();
  EXPECT_EQ(Run({"convert", native_, out_directory_, "--to", "hf", "--config", dir_.File("config.json"),
                 "--dtype", "float16"}),
            kExitOk)
      << err_;
  EXPECT_EQ(ReadFileOf(out_directory_ + "/config.json"),
            absl::StrReplaceAll(absl::StrCat(kConfig, "\n"), {{"float64", "float16"}}));
}

TEST_F(CkptConvertTest, AcceptsModelFromSpec) {
  MakeNative();
  // The default of a config.json without this field.
  WriteFileOf(dir_.File("job.yaml"), absl::StrReplaceAll(kSpec, {{"2}", "2, norm_epsilon: 1e-06}"}}));
  EXPECT_EQ(Run({"convert", native_, out_directory_, "--to", "hf", "--spec", dir_.File("job.yaml")}), kExitOk)
      << err_;
  EXPECT_EQ(Run({"diff", hf_, out_directory_}), kExitOk) << out_;
  // The config.json that was written can be read.
  EXPECT_EQ(Run({"convert", out_directory_, dir_.File("again"), "--to", "fsdp_dtensor"}), kExitOk) << err_;
  EXPECT_EQ(Run({"diff", native_, dir_.File("again")}), kExitOk) << out_;
}

TEST_F(CkptConvertTest, RequiresModel) {
  MakeJobs("");
  const std::vector<std::string> convert = {"convert", native_, out_directory_, "--to", "hf"};
  EXPECT_EQ(Run(convert), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("add --config CONFIG.JSON, or --spec JOB.YAML"));
  std::vector<std::string> both = convert;
  both.insert(both.end(), {"--config", dir_.File("config.json"), "--spec", dir_.File("job.yaml")});
  EXPECT_EQ(Run(both), kExitUsage);
  WriteFileOf(dir_.File("job.yaml"), "name: x\nmodel: {plugin: {path: /x.so}}\n");
  EXPECT_NE(Run({"convert", native_, out_directory_, "--to", "hf", "--spec", dir_.File("job.yaml")}),
            kExitOk);
  EXPECT_FALSE(fs::exists(out_directory_));
}

constexpr char kJobsSpec[] =
    R"({"model": {"llama": {"vocab_size": 32, "hidden_size": "8", "intermediate_size": "12", "layers": "1",
                            "heads": "2", "norm_epsilon": 1e-06}}, "of_another_version": 1})";

TEST_F(CkptConvertTest, UsesModelInsideJobCheckpoint) {
  MakeJobs(kJobsSpec);
  const std::string given = dir_.File("given");
  ASSERT_EQ(Run({"convert", native_, out_directory_, "--to", "hf"}), kExitOk) << err_;
  EXPECT_EQ(Run({"convert", native_, given, "--to", "hf", "--config", dir_.File("config.json")}), kExitOk)
      << err_;
  EXPECT_EQ(Run({"diff", out_directory_, given}), kExitOk) << out_;
  EXPECT_THAT(ReadFileOf(out_directory_ + "/config.json"), HasSubstr("\"num_attention_heads\": 2"));
}

// The spec in a checkpoint of release 0.1 has old names.
TEST_F(CkptConvertTest, ReadsSpecWithOldNames) {
  for (const RenamedField& field : RenamedFields()) {
    if (field.name != "std") continue;
    std::string spec = kJobsSpec;
    spec.insert(1, absl::StrCat(R"("train": {"initial": {")", field.before, R"(": 0.5}}, )"));
    MakeJobs(spec);
    ASSERT_EQ(Run({"convert", native_, out_directory_, "--to", "hf"}), kExitOk) << err_;
    EXPECT_THAT(ReadFileOf(out_directory_ + "/config.json"), HasSubstr("\"initializer_range\": 0.5"));
  }
}

// These settings do not affect shapes: with wrong ones the model would silently compute different results.
TEST_F(CkptConvertTest, RejectsModelThatContradictsCheckpoint) {
  MakeJobs(kJobsSpec);
  WriteFileOf(dir_.File("config.json"),
              absl::StrReplaceAll(kConfig, {{"\"num_attention_heads\": 2", "\"num_attention_heads\": 4"},
                                            {"\"bos_token_id\": 1", "\"rms_norm_eps\": 1e-5"}}));
  EXPECT_EQ(Run({"convert", native_, out_directory_, "--to", "hf", "--config", dir_.File("config.json")}),
            kExitSpecRefused);
  EXPECT_THAT(err_,
              HasSubstr("config.json: error: heads: 4 there, and 2 in the checkpoint [CHECKPOINT_ERROR]\n"));
  EXPECT_THAT(
      err_,
      HasSubstr(
          "config.json: error: norm_epsilon: 1e-05 there, and 1e-06 in the checkpoint [CHECKPOINT_ERROR]\n"));
  EXPECT_FALSE(fs::exists(out_directory_));
}

TEST_F(CkptConvertTest, RejectsInvalidSpecInsideCheckpoint) {
  MakeJobs("{\"model\": 7}");
  EXPECT_EQ(Run({"convert", native_, out_directory_, "--to", "hf"}), kExitDamaged);
  EXPECT_THAT(err_, HasSubstr("fsdpd.spec is not the spec of a job"));
}

// tests/integration/test_lora.py compares the files with those of an export.
TEST_F(CkptConvertTest, WritesAdaptersForPeft) {
  LoraConfig lora;
  lora.rank = 2;
  lora.targets = {"*.wq"};
  std::vector<NamedParam> adapters = AdapterParamsOf(Model(), lora);
  const auto spec_with = [](const char* train) {
    std::string spec = kJobsSpec;
    return spec.insert(1, absl::StrCat("\"train\": {\"lora\": {", train, "}}, "));
  };
  const std::string spec = spec_with(R"("rank": "2", "targets": ["*.wq"], "base_model": "/models/llama")");
  MakeJobs(spec, adapters);
  EXPECT_EQ(Run({"convert", native_, out_directory_, "--to", "peft"}), kExitOk) << err_;
  EXPECT_EQ(out_, absl::StrCat(out_directory_, ": 2 tensors, 128 B in 1 file, float32\n"));
  EXPECT_THAT(ReadFileOf(out_directory_ + "/adapter_config.json"),
              AllOf(HasSubstr("\"base_model_name_or_path\": \"/models/llama\""), HasSubstr("\"q_proj\"")));
  EXPECT_EQ(Run({"diff", native_, out_directory_}), kExitOk) << out_ << err_;
  EXPECT_EQ(Run({"convert", out_directory_, dir_.File("again"), "--to", "peft"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("out: is already a directory of PEFT; copy it"));
  EXPECT_EQ(Run({"convert", native_, dir_.File("again"), "--to", "hf"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("has only LoRA adapters; use `fsdpctl ckpt merge`"));
  adapters[1].shape[0] += 1;
  MakeJobs(spec, adapters);
  EXPECT_EQ(Run({"convert", native_, dir_.File("again"), "--to", "peft"}), kExitDamaged);
  EXPECT_THAT(err_,
              HasSubstr("model.module.layer.0.attention.wq.lora_B: wrong type or shape (got float32 [9, "
                        "2], want floating-point [8, 2])"));
  adapters.pop_back();
  MakeJobs(spec, adapters);
  EXPECT_EQ(Run({"convert", native_, dir_.File("again"), "--to", "peft"}), kExitDamaged);
  EXPECT_THAT(err_, HasSubstr("wq.lora_B: is missing"));
  MakeJobs(spec_with(R"("rank": "-1")"), adapters);
  EXPECT_EQ(Run({"convert", native_, dir_.File("again"), "--to", "peft"}), kExitDamaged);
  EXPECT_THAT(err_, HasSubstr("fsdpd.spec has an invalid rank or alpha"));
  MakeJobs(R"({"model": {"preset": "gpt2"}, "train": {"lora": {"rank": "2"}}})", adapters);
  EXPECT_EQ(Run({"convert", native_, dir_.File("again"), "--to", "peft"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("is not of a model of the Llama family"));
  MakeJobs(kJobsSpec);
  EXPECT_EQ(Run({"convert", native_, dir_.File("again"), "--to", "peft"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("is neither a checkpoint of a LoRA job nor a directory of PEFT"));
  EXPECT_FALSE(fs::exists(dir_.File("again")));
}

TEST_F(CkptConvertTest, RoundTripsTorchDist) {
  MakeNative();
  ASSERT_EQ(Run({"convert", native_, out_directory_, "--to", "torch_dist"}), kExitOk) << err_;
  EXPECT_THAT(out_, HasSubstr(", float32\n"));
  ASSERT_EQ(Run({"convert", out_directory_, dir_.File("back"), "--to", "fsdp_dtensor"}), kExitOk) << err_;
  EXPECT_EQ(Run({"diff", native_, dir_.File("back")}), kExitOk) << out_;
}

// A config.json has only a model, while a job's checkpoint has the complete spec.
TEST_F(CkptConvertTest, OutputContainsItsModel) {
  const std::string hf_config = dir_.File("config.json"), again = dir_.File("again");
  MakeNative();
  ASSERT_EQ(Run({"inspect", native_}), kExitOk);
  EXPECT_THAT(out_, HasSubstr("fsdpd.spec"));
  ASSERT_EQ(Run({"convert", native_, out_directory_, "--to", "hf"}), kExitOk) << err_;
  EXPECT_EQ(Run({"diff", hf_, out_directory_}), kExitOk) << out_;
  WriteFileOf(hf_config,
              absl::StrReplaceAll(kConfig, {{"\"num_attention_heads\": 2", "\"num_attention_heads\": 4"}}));
  EXPECT_EQ(Run({"convert", native_, again, "--to", "hf", "--config", hf_config}), kExitSpecRefused);
  EXPECT_THAT(err_, HasSubstr("heads: 4 there, and 2 in the checkpoint"));
  fs::remove_all(native_);
  MakeJobs(kJobsSpec);
  ASSERT_EQ(Run({"convert", native_, again, "--to", "fsdp_dtensor"}), kExitOk) << err_;
  EXPECT_EQ(Run({"diff", native_, again}), kExitOk) << out_ << "its spec equals the job's";
}

// Repairing the source changes it, so the conversion restarts; fsdp/checkpoint/convert_resume_test has the
// details.
TEST_F(CkptConvertTest, ResumesInterruptedConversionOfSameSource) {
  MakeJobs(kJobsSpec);
  const std::string file = native_ + "/__0_0.distcp", whole = ReadFileOf(file);
  std::string damaged = whole;
  const TestTensor last = MakeTestTensor("model.module.head.output", "float32", {32, 8});
  const size_t at = damaged.find(last.numbers);
  ASSERT_NE(at, std::string::npos);
  damaged[at] ^= 1;
  const fs::file_time_type time = fs::last_write_time(file);
  WriteFileOf(file, damaged);
  fs::last_write_time(file, time);
  const std::vector<std::string> convert = {"convert", native_,         out_directory_, "--to",
                                            "hf",      "--shard-bytes", "300"};
  EXPECT_EQ(Run(convert), kExitDamaged);
  EXPECT_THAT(err_, HasSubstr("out.part; run the same command to resume"));
  std::vector<std::string> other = convert;
  other.insert(other.end(), {"--dtype", "float32"});
  EXPECT_EQ(Run(other), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("--dtype was bfloat16, now is float32"));
  EXPECT_THAT(err_, HasSubstr("start over with --overwrite"));
  EXPECT_EQ(Run(convert), kExitDamaged);
  EXPECT_THAT(err_, HasSubstr("out.part; run the same command to resume"));
  WriteFileOf(file, whole);
  fs::last_write_time(file, time + std::chrono::seconds(1));
  EXPECT_EQ(Run(convert), kExitUsage);
  EXPECT_THAT(err_,
              HasSubstr("out.part: has an unfinished conversion with other arguments: files of SOURCE was"));
  std::vector<std::string> anew = convert;
  anew.push_back("--overwrite");
  ASSERT_EQ(Run(anew), kExitOk) << err_;
  EXPECT_FALSE(fs::exists(out_directory_ + ".part"));
  fs::rename(out_directory_, dir_.File("first"));
  ASSERT_EQ(Run(convert), kExitOk) << err_;
  EXPECT_EQ(Run({"diff", dir_.File("first"), out_directory_}), kExitOk) << out_;
}

TEST_F(CkptConvertTest, OverwriteRestartsButKeepsExistingTarget) {
  fs::create_directory(out_directory_ + ".part");
  WriteFileOf(out_directory_ + ".part/.fsdpd_conversion",
              R"({"version": 1, "begun": {"SOURCE": "/another"}, "files": []})");
  EXPECT_EQ(Run({"convert", hf_, out_directory_, "--to", "fsdp_dtensor"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("SOURCE was /another, now is "));
  EXPECT_EQ(Run({"convert", hf_, out_directory_, "--to", "fsdp_dtensor", "--overwrite"}), kExitOk) << err_;
  EXPECT_EQ(Run({"convert", hf_, out_directory_, "--to", "fsdp_dtensor", "--overwrite"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("out: already exists"));
}

TEST_F(CkptConvertTest, RejectsInvalidModel) {
  WriteFileOf(hf_ + "/config.json",
              absl::StrReplaceAll(kConfig, {{"\"num_attention_heads\": 2", "\"num_attention_heads\": 3"}}));
  EXPECT_EQ(Run({"convert", hf_, native_, "--to", "fsdp_dtensor"}), kExitSpecRefused);
  EXPECT_THAT(err_, HasSubstr("config.json:6:3: error: num_attention_heads, here model.llama.heads: "));
  WriteFileOf(hf_ + "/config.json", absl::StrReplaceAll(kConfig, {{"llama", "mamba"}}));
  EXPECT_EQ(Run({"convert", hf_, native_, "--to", "fsdp_dtensor"}), kExitSpecRefused);
  EXPECT_THAT(err_, HasSubstr("config.json:2:"));
  WriteFileOf(dir_.File("job.yaml"), "name: x\nmodel: {llama: {layers: 0}}\n");
  EXPECT_EQ(Run({"convert", hf_, native_, "--to", "fsdp_dtensor", "--spec", dir_.File("job.yaml")}),
            kExitSpecRefused);
  EXPECT_THAT(err_, HasSubstr("job.yaml:2:"));
}

TEST_F(CkptConvertTest, RejectsInvalidFlags) {
  EXPECT_EQ(Run({"convert", hf_, native_}), kExitUsage);
  EXPECT_EQ(Run({"convert", hf_, native_, "--to", "gguf"}), kExitUsage);
  EXPECT_EQ(Run({"convert", hf_, native_, "--to", "hf", "--dtype", "int8"}), kExitUsage);
  EXPECT_EQ(Run({"convert", hf_, native_, "--to", "hf", "--shard-bytes", "many"}), kExitUsage);
  EXPECT_EQ(Run({"convert", hf_, native_, "--to", "peft", "--shard-bytes", "1GB"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("--shard-bytes: is not supported with --to peft"));
  EXPECT_EQ(Run({"convert", hf_, native_, "--to", "fsdp_dtensor", "--dtype", "bfloat16"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("float32; remove --dtype"));
  EXPECT_EQ(
      Run({"convert", dir_.File("absent"), native_, "--to", "hf", "--config", dir_.File("config.json")}),
      kExitUsage);
  EXPECT_THAT(err_, HasSubstr("not a checkpoint"));
  EXPECT_EQ(Run({"convert", hf_, hf_, "--to", "hf"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("hf: already exists"));
}

TEST_F(CkptConvertTest, PrintsDefectsAndExitsWith9) {
  WriteHf(dir_.File("wrong"), [](TestTensor* tensor) {
    if (tensor->name == "model.norm.weight") *tensor = MakeTestTensor(tensor->name, "bfloat16", {9});
  });
  EXPECT_EQ(Run({"convert", dir_.File("wrong"), native_, "--to", "fsdp_dtensor", "-o", "json"}),
            kExitDamaged);
  EXPECT_EQ(err_, absl::StrCat(
                      dir_.File("wrong"),
                      ": error: model.norm.weight: wrong shape (got [9], want [8]) [CHECKPOINT_CORRUPT]\n"));
  EXPECT_THAT(out_, HasSubstr(R"json("error": "wrong shape (got [9], want [8])")json"));
}

TEST_F(CkptConvertTest, WarnsOfOverflow) {
  WriteHf(dir_.File("large"), [](TestTensor* tensor) {
    if (tensor->name == "model.norm.weight") tensor->numbers.replace(0, 2, "\x80\x49");  // 2^20
  });
  EXPECT_EQ(
      Run({"convert", dir_.File("large"), out_directory_, "--to", "hf", "--dtype", "float16", "-o", "yaml"}),
      kExitOk);
  EXPECT_THAT(err_, HasSubstr("values exceed the range of float16 and became infinite"));
  EXPECT_THAT(out_, Not(HasSubstr("overflowed: 0\n")));
}

TEST_F(CkptConvertTest, DrawsProgressOnTerminal) {
  MakeNative();
  EXPECT_THAT(err_, Not(HasSubstr("KiB of")));
  err_terminal_ = true;
  ASSERT_EQ(Run({"convert", native_, out_directory_, "--to", "hf", "--config", dir_.File("config.json")}),
            kExitOk);
  EXPECT_THAT(err_, HasSubstr("12/12  2.11 KiB of 2.11 KiB"));
  EXPECT_TRUE(err_.size() > 5 && err_.substr(err_.size() - 5) == "\r\x1b[2K")
      << "the line is cleared at the end";
}

TEST_F(CkptConvertTest, InterruptCancels) {
  interrupt_.Fire();
  EXPECT_EQ(Run({"convert", hf_, native_, "--to", "fsdp_dtensor"}), kExitInterrupted);
  EXPECT_FALSE(fs::exists(native_));
  EXPECT_EQ(Run({"diff", hf_, hf_}), kExitInterrupted);
}

TEST_F(CkptConvertTest, DiffListsDifferences) {
  WriteHf(dir_.File("other"), [](TestTensor* tensor) {
    if (tensor->name == "model.norm.weight") tensor->numbers.assign(16, '\0');
    if (tensor->name == "lm_head.weight") *tensor = MakeTestTensor(tensor->name, "bfloat16", {4, 4});
  });
  EXPECT_EQ(Run({"diff", hf_, dir_.File("other")}), kExitDiffers);
  EXPECT_THAT(out_, HasSubstr("NAME               FIRST             SECOND           LARGEST DIFFERENCE\n"
                              "lm_head.weight     bfloat16 [32, 8]  bfloat16 [4, 4]\n"
                              "model.norm.weight  bfloat16 [8]      bfloat16 [8]     "));
  EXPECT_THAT(out_, HasSubstr(" in 8 values\n\n2 differ, 10 are equal\n"));
  EXPECT_EQ(Run({"diff", hf_, dir_.File("absent")}), kExitUsage);
}

TEST_F(CkptConvertTest, ReportsMissingSource) {
  const std::string absent = dir_.File("absent");
  EXPECT_EQ(Run({"convert", absent, dir_.File("out"), "--to", "hf"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr(absent + ": not a checkpoint: it has neither .metadata, nor safetensors"));
}

TEST_F(CkptConvertTest, RejectsTargetInsideSource) {
  EXPECT_EQ(Run({"convert", hf_, hf_ + "/out", "--to", "fsdp_dtensor"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("/out: is inside SOURCE (" + hf_ + ")"));
  EXPECT_FALSE(fs::exists(hf_ + "/out"));
  EXPECT_EQ(Run({"convert", hf_, hf_ + "2/out", "--to", "fsdp_dtensor"}), kExitUsage) << "another directory";
  EXPECT_THAT(err_, Not(HasSubstr("is inside SOURCE")));
}

TEST_F(CkptConvertTest, VerifyReportsMissingChecksumFile) {
  MakeJobs(kJobsSpec);
  EXPECT_EQ(Run({"verify", native_}), kExitOk);
  EXPECT_EQ(err_, "");
  fs::remove(native_ + "/.fsdpd_sums");
  EXPECT_EQ(Run({"verify", native_}), kExitOk);
  EXPECT_THAT(err_, HasSubstr("note: .fsdpd_sums is missing; corruption of .metadata"));
}

}  // namespace
}  // namespace fsdpd
