#include "coordinator/serve/etcd_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <vector>

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

TEST(EtcdFlags, ReadsPrefixFromThePathOfTheStore) {
  for (const auto& [store, prefix] : {std::pair("etcd://a:1", "/fsdpd/"), std::pair("etcd://a:1/", "/fsdpd/"),
                                      std::pair("etcd://a:1,b:2/one/two/", "/one/two/")}) {
    EtcdFlags flags;
    EXPECT_TRUE(ParseStore(store, &flags).ok());
    EXPECT_EQ(flags.prefix, prefix);
  }
}

// The error of a command line, or "".
std::string Judged(std::vector<std::string> words) {
  EtcdFlags flags;
  CLI::App app;
  DeclareEtcdFiles(&app, DeclareStore(&app, "a state", &flags), &flags);
  try {
    std::reverse(words.begin(), words.end());
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return WhyNotReached(flags);
}

TEST(EtcdFlags, RemoteEtcdRequiresTls) {
  EXPECT_EQ(Judged({"--store", "etcd://127.0.0.1:1,[::1]:2"}), "");
  EXPECT_THAT(Judged({"--store", "etcd://10.0.0.1:1"}), HasSubstr("requires TLS; set --etcd-ca"));
  EXPECT_EQ(Judged({"--store", "etcd://10.0.0.1:1", "--etcd-ca", "ca"}), "");
  EXPECT_THAT(Judged({"--store", "etcd://127.0.0.1:1", "--etcd-cert", "c"}), HasSubstr("require each other"));
  EXPECT_THAT(Judged({"--store", "etcd://127.0.0.1:1", "--etcd-cert", "c", "--etcd-key", "k"}),
              HasSubstr("requires --etcd-ca"));
  EXPECT_THAT(Judged({"--etcd-ca", "ca"}), HasSubstr("--store"));
  EXPECT_THAT(Judged({"--store", "sqlite:x"}), HasSubstr("does not start with etcd://"));
}

}  // namespace
}  // namespace fsdpd
