#include "base/api/bearer_token.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

TEST(BearerToken, TokensAreUnique) {
  const std::string token = NewBearerToken();
  EXPECT_EQ(token.size(), 6u + 64u);
  EXPECT_EQ(token.substr(0, 6), "fsdpd_");
  EXPECT_NE(token, NewBearerToken());
}

TEST(BearerToken, HashIsSha256OfTheText) {
  // `printf abc | sha256sum`
  EXPECT_EQ(HashOfToken("abc"), "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_TRUE(IsTokenHash(HashOfToken(NewBearerToken())));
}

TEST(BearerToken, RejectsInvalidHashes) {
  const std::string hash = HashOfToken("abc");
  for (const std::string& text : {std::string(), std::string("sha256:"), hash.substr(7), hash + "0",
                                  "sha512:" + hash.substr(7), hash.substr(0, 70) + "X", NewBearerToken()}) {
    EXPECT_FALSE(IsTokenHash(text)) << text;
  }
}

TEST(BearerToken, SameHashComparesAllBytes) {
  const std::string hash = HashOfToken("abc");
  EXPECT_TRUE(SameHash(hash, HashOfToken("abc")));
  EXPECT_FALSE(SameHash(hash, HashOfToken("abd")));
  EXPECT_FALSE(SameHash(hash, hash.substr(0, 70)));
}

}  // namespace
}  // namespace fsdpd
