#include "fsdp/profile/profile_command.h"

#include <gtest/gtest.h>

#include <sstream>

#include "fsdp/torch/cuda_device.h"

namespace fsdpd {
namespace {

struct Result {
  int code;
  std::string out, err;
};

Result Profile(const std::vector<std::string>& arguments) {
  std::ostringstream out, err;
  const int code = RunRankProfile(arguments, &out, &err);
  return {code, out.str(), err.str()};
}

TEST(ProfileCommand, PrintsOnlyProfileToStdout) {
  const Result result = Profile({"--profile-device", "cpu", "--ranks", "2"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out.find("{\n  \"name\": \"measured cpu x2\",\n  \"fp32_matmul_flops\": "), 0u)
      << result.out;
  EXPECT_EQ(result.out.substr(result.out.size() - 2), "}\n");
  EXPECT_EQ(result.err.find("measuring 1/9: 2 ranks started\nmeasuring 2/9: matrix products in fp32\n"), 0u);
  EXPECT_NE(result.err.find("measuring 9/9: "), std::string::npos);
  EXPECT_NE(result.err.find("\nnote: "), std::string::npos);
}

TEST(ProfileCommand, RejectsInvalidUsage) {
  EXPECT_TRUE(IsProfileCommand({"--profile-device"}));
  EXPECT_FALSE(IsProfileCommand({}));
  EXPECT_FALSE(IsProfileCommand({"--version"}));
  using Arguments = std::vector<std::string>;
  for (const Arguments& arguments :
       {Arguments{}, Arguments{"tpu"}, Arguments{"cpu", "--ranks"}, Arguments{"cpu", "--ranks", "0"},
        Arguments{"cpu", "--ranks", "two"}, Arguments{"cpu", "--rank", "2"}}) {
    Arguments all{"--profile-device"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const Result result = Profile(all);
    EXPECT_EQ(result.code, 2);
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(result.err.find("usage: fsdpd-rank --profile-device"), 0u);
  }
}

TEST(ProfileCommand, ReportsMissingDevice) {
  if (CudaAvailable()) GTEST_SKIP() << "there is one";
  const Result result = Profile({"--profile-device", "cuda"});
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.err, "fsdpd-rank: cannot profile the device: no CUDA device found\n");
}

}  // namespace
}  // namespace fsdpd
