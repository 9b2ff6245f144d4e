#include "fsdp/model/package/package_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/headeronly/version.h>

#include <optional>
#include <variant>

#include "base/temp_dir.h"
#include "fsdp/package/package_file.h"
#include "fsdp/package/testing/package_writer.h"
#include "fsdp/plan/model/describe_model.h"
#include "fsdp/plan/spec/testing/small_package.h"

namespace fsdpd {
namespace {

// Units of real packages are tested with PyTorch (tests/parity/test_exported_models.py).
class PackageModelTest : public ::testing::Test {
 protected:
  PackageModelTest() {
    v1::Package model = SmallPackage();
    model.set_torch_version(TORCH_VERSION);
    manifest_ = ManifestOf(model);
    for (int unit = 0; unit < model.units_size(); ++unit) {
      for (int i = 0; i < model.graphs(static_cast<int>(model.units(unit).graph())).params_size(); ++i)
        manifest_.mutable_units(unit)->add_initial_values()->set_constant(0);
    }
  }

  // The error of MakePackageUnits.
  std::string Refused() {
    const FileContents files = {{"call.so", "not a shared object"}};
    manifest_.clear_files();
    ListFiles(files, &manifest_);
    const std::string path = WriteFile(dir_.path() + "/model.fsdpd",
                                       ZipOf({{"manifest.json", JsonOf(manifest_)}, *files.begin()}));
    const auto read = ReadPackage(path);
    EXPECT_TRUE(read.ok()) << read.status();
    v1::JobSpec job;
    *job.mutable_model()->mutable_package() = spec_.value_or(manifest_.model());
    job.mutable_model()->mutable_package()->set_path(path);
    job.mutable_model()->mutable_package()->set_digest(read->model().digest());
    const ModelConfig config = ToModelConfig(job.model());
    const auto& package = std::get<PackageConfig>(config);
    const ModelFacts facts =
        DescribeModel(config, package.micro_batch, package.sequence_length, package.compute);
    return std::string(
        MakePackageUnits(package, dir_.path() + "/unpacked", facts, at::kCPU).status().message());
  }

  v1::PackageCall* Evaluation() {
    v1::PackageCall* const call = manifest_.mutable_graphs(0)->mutable_evaluation();
    call->set_library("call.so");
    return call;
  }

  const TempDir dir_;
  v1::PackageManifest manifest_;
  std::optional<v1::Package> spec_;  // Other fields than in the file.
};

TEST_F(PackageModelTest, RefusesOtherVersionOfPyTorch) {
  manifest_.mutable_model()->set_torch_version("2.10.1+cu130");
  EXPECT_EQ(Refused(),
            "package: compiled by PyTorch 2.10.1+cu130, but this node runs 2.11.0; export it again "
            "with PyTorch 2.11.0");
}

TEST_F(PackageModelTest, RefusesOtherDevice) {
  manifest_.mutable_model()->set_device(v1::DEVICE_CUDA);
  EXPECT_EQ(Refused(), "package: compiled for cuda, not for cpu; export it again with --device cpu");
}

TEST_F(PackageModelTest, RefusesOtherProcessor) {
  manifest_.mutable_model()->set_target("armv9");
  EXPECT_EQ(Refused(),
            "package: compiled for armv9, which this processor does not support; run the job on other nodes");
}

TEST_F(PackageModelTest, RefusesGraphWithoutCalls) {
  EXPECT_EQ(Refused(), "package: graph 0: has no evaluation");
}

TEST_F(PackageModelTest, RefusesArgumentThatTheUnitDoesNotHave) {
  v1::PackageValue* const input = Evaluation()->add_inputs();
  input->set_kind(v1::PackageValue::KIND_PARAM);
  input->set_index(7);
  EXPECT_EQ(Refused(), "package: graph 0: invalid argument: KIND_PARAM 7");
}

TEST_F(PackageModelTest, RefusesArgumentThatOnlyBackwardHas) {
  Evaluation()->add_inputs()->set_kind(v1::PackageValue::KIND_GRAD_HIDDEN);
  EXPECT_EQ(Refused(), "package: graph 0: invalid argument: KIND_GRAD_HIDDEN 0");
}

TEST_F(PackageModelTest, RefusesForwardWithoutHiddenStates) {
  Evaluation();
  EXPECT_EQ(Refused(), "package: graph 0: a forward has no hidden states");
}

TEST_F(PackageModelTest, RefusesBackwardWithoutGradient) {
  v1::PackageCall* const call = Evaluation();
  call->add_inputs()->set_kind(v1::PackageValue::KIND_PARAM);
  call->add_outputs()->set_kind(v1::PackageValue::KIND_HIDDEN);
  manifest_.mutable_graphs(0)->add_variants();
  EXPECT_EQ(Refused(), "package: graph 0: backward has no gradient of parameter weight");
}

TEST_F(PackageModelTest, NamesLibraryThatCannotBeLoaded) {
  v1::PackageCall* const call = Evaluation();
  call->add_outputs()->set_kind(v1::PackageValue::KIND_HIDDEN);
  v1::PackageCall* const backward = manifest_.mutable_graphs(0)->add_variants()->mutable_backward();
  backward->set_library("call.so");
  backward->add_outputs()->set_kind(v1::PackageValue::KIND_GRAD_PARAM);
  EXPECT_THAT(Refused(), ::testing::HasSubstr("/unpacked/call.so: cannot be loaded: "));
}

TEST_F(PackageModelTest, RefusesOtherShapesThanTheSpec) {
  spec_ = manifest_.model();
  spec_->mutable_graphs(0)->mutable_params(0)->set_shape(1, 8);
  EXPECT_EQ(Refused(), "package: unit model.embed_tokens has other parameters than in the job's spec");
}

TEST_F(PackageModelTest, RefusesParametersWithoutInitialValues) {
  manifest_.mutable_units(0)->clear_initial_values();
  EXPECT_EQ(Refused(), "package: unit model.embed_tokens has 0 initial values for 1 parameters");
}

}  // namespace
}  // namespace fsdpd
