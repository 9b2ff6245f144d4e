#include "fsdp/checkpoint/format/zip.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdp/checkpoint/format/crc32.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

std::string SmallArchive() {
  ZipWriter writer;
  writer.Add("a/one", "1");
  writer.Add("a/none", "");
  writer.Add("a/numbers", std::string(1000, 'n'));
  writer.Finish();
  const int64_t position = writer.position();
  std::string bytes = writer.Take();
  EXPECT_EQ(position, static_cast<int64_t>(bytes.size()));
  return bytes;
}

std::string ErrorOf(const std::string& bytes) {
  const auto members = ReadZip(static_cast<int64_t>(bytes.size()), ReadAtOf(bytes));
  EXPECT_TRUE(absl::IsDataLoss(members.status())) << members.status();
  return std::string(members.status().message());
}

TEST(Zip, ReadsWriterOutput) {
  const std::string bytes = SmallArchive();
  const auto members = ReadZip(static_cast<int64_t>(bytes.size()), ReadAtOf(bytes));
  ASSERT_TRUE(members.ok()) << members.status();
  ASSERT_EQ(members->size(), 3u);
  EXPECT_EQ((*members)[0].name, "a/one");
  EXPECT_EQ(*ReadZipMember((*members)[0], ReadAtOf(bytes), 1000), "1");
  EXPECT_EQ((*members)[1].size, 0);
  EXPECT_EQ(*ReadZipMember((*members)[2], ReadAtOf(bytes), 1000), std::string(1000, 'n'));
  for (const ZipMember& member : *members) EXPECT_EQ(member.begin % 64, 0) << member.name;
}

// An archive of more than 4 GiB whose large member is virtual: it reads as zeros.
TEST(Zip, SupportsZip64) {
  constexpr int64_t kLarge = int64_t{5} << 30;
  ZipWriter writer;
  writer.Begin("large", kLarge);
  const std::string head = writer.Take();
  writer.End(0x12345678);
  writer.Add("after", "here");
  writer.Finish();
  const std::string tail = writer.Take();
  const auto head_bytes = static_cast<int64_t>(head.size());
  const int64_t size = writer.position();
  EXPECT_EQ(size, head_bytes + kLarge + static_cast<int64_t>(tail.size()));
  const ReadAt read = [&](int64_t begin, int64_t bytes, void* out) {
    for (int64_t i = 0; i < bytes; ++i) {
      const int64_t at = begin + i;
      static_cast<char*>(out)[i] = at < head_bytes            ? head[at]
                                   : at < head_bytes + kLarge ? '\0'
                                                              : tail[at - head_bytes - kLarge];
    }
    return absl::OkStatus();
  };
  const auto members = ReadZip(size, read);
  ASSERT_TRUE(members.ok()) << members.status();
  EXPECT_EQ((*members)[0].size, kLarge);
  EXPECT_EQ((*members)[0].crc32, 0x12345678u);
  EXPECT_EQ((*members)[1].begin % 64, 0);
  EXPECT_EQ(*ReadZipMember((*members)[1], read, 4), "here");
}

TEST(Zip, RejectsEveryPrefix) {
  const std::string bytes = SmallArchive();
  for (size_t size = 0; size < bytes.size(); ++size) EXPECT_NE(ErrorOf(bytes.substr(0, size)), "") << size;
}

TEST(Zip, RejectsUnsupportedFeatures) {
  const std::string good = SmallArchive();
  const size_t entry = good.find("PK\x01\x02");
  const auto changed = [&](size_t at, char to) {
    std::string bytes = good;
    bytes[at] = to;
    return bytes;
  };
  EXPECT_THAT(ErrorOf(changed(entry + 10, 8)), HasSubstr("compressed"));
  EXPECT_THAT(ErrorOf(changed(entry + 8, 1)), HasSubstr("encrypted"));
  EXPECT_THAT(ErrorOf(changed(entry + 24, 2)), HasSubstr("size of a stored member differ"));
  EXPECT_THAT(ErrorOf(changed(entry + 46, 'b')), HasSubstr("local header is not of b/one"));
  EXPECT_THAT(ErrorOf(changed(0, 'Q')), HasSubstr("no local header of a/one"));
  EXPECT_THAT(ErrorOf(changed(good.size() - 2, 1)), HasSubstr("comments are not supported"));
  EXPECT_THAT(ErrorOf(good + "x"), HasSubstr("end of central directory not found"));
}

TEST(Zip, DetectsDamagedMember) {
  std::string bytes = SmallArchive();
  bytes[bytes.find("nnnn")] = 'm';
  const auto members = ReadZip(static_cast<int64_t>(bytes.size()), ReadAtOf(bytes));
  ASSERT_TRUE(members.ok());
  EXPECT_THAT(std::string(ReadZipMember((*members)[2], ReadAtOf(bytes), 1000).status().message()),
              HasSubstr("checksum mismatch in a/numbers"));
}

TEST(Zip, RejectsMemberLargerThanLimit) {
  const std::string bytes = SmallArchive();
  const auto members = ReadZip(static_cast<int64_t>(bytes.size()), ReadAtOf(bytes));
  ASSERT_TRUE(members.ok());
  EXPECT_THAT(std::string(ReadZipMember((*members)[2], ReadAtOf(bytes), 999).status().message()),
              HasSubstr("a/numbers is too large (got 1000 bytes, want at most 999)"));
}

// Like torch with set_crc32_options(False), except for the checksum of the last member.
std::string ArchiveWithoutSums(uint32_t last) {
  ZipWriter writer;
  std::string bytes;
  for (const char* name : {"a/one", "a/two"}) {
    writer.Begin(name, 3);
    bytes += writer.Take() + "abc";
    writer.End(name == std::string("a/two") ? last : 0);
  }
  writer.Finish();
  return bytes + writer.Take();
}

TEST(Zip, ReadsArchiveWithoutChecksums) {
  const std::string bytes = ArchiveWithoutSums(0);
  const auto members = ReadZip(static_cast<int64_t>(bytes.size()), ReadAtOf(bytes));
  ASSERT_TRUE(members.ok()) << members.status();
  for (const ZipMember& member : *members) {
    EXPECT_FALSE(member.summed);
    EXPECT_EQ(*ReadZipMember(member, ReadAtOf(bytes), 3), "abc");
  }
}

TEST(Zip, ZeroChecksumAmongOthersCounts) {
  const std::string bytes = ArchiveWithoutSums(Crc32("abc", 3));
  const auto members = ReadZip(static_cast<int64_t>(bytes.size()), ReadAtOf(bytes));
  ASSERT_TRUE(members.ok()) << members.status();
  EXPECT_TRUE((*members)[0].summed);
  EXPECT_TRUE(absl::IsDataLoss(ReadZipMember((*members)[0], ReadAtOf(bytes), 3).status()));
}

TEST(Zip, RejectsNameThatIsNotUtf8) {
  ZipWriter writer;
  writer.Add("a/\xff", "1");
  writer.Finish();
  EXPECT_THAT(ErrorOf(writer.Take()), HasSubstr("member name is not UTF-8"));
}

}  // namespace
}  // namespace fsdpd
