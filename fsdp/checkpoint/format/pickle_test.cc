#include "fsdp/checkpoint/format/pickle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "fsdp/checkpoint/format/pickle_writer.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(const std::string& bytes, const PickleLimits& limits = PickleLimits()) {
  const absl::StatusOr<Pickle> pickle = Pickle::Parse(bytes, limits);
  EXPECT_TRUE(absl::IsDataLoss(pickle.status())) << pickle.status();
  return std::string(pickle.status().message());
}

Pickle Parsed(const std::string& bytes) {
  absl::StatusOr<Pickle> pickle = Pickle::Parse(bytes);
  EXPECT_TRUE(pickle.ok()) << pickle.status();
  return pickle.ok() ? *std::move(pickle) : *Pickle::Parse("N.");
}

TEST(Pickle, ParsesWriterOutput) {
  const std::vector<int64_t> numbers = {0,
                                        255,
                                        256,
                                        65535,
                                        65536,
                                        -1,
                                        std::numeric_limits<int32_t>::min(),
                                        int64_t{1} << 31,
                                        -(int64_t{1} << 39),
                                        (int64_t{1} << 39) - 1,
                                        std::numeric_limits<int64_t>::max(),
                                        std::numeric_limits<int64_t>::min()};
  PickleWriter writer;
  writer.BeginDict();
  writer.Text("numbers");
  writer.BeginList();
  for (const int64_t number : numbers) writer.Int(number);
  writer.Appends();
  writer.Text("rest");
  writer.Mark();
  writer.None();
  writer.Bool(true);
  writer.Float(-0.1);
  writer.Text("numbers");
  writer.Class("torch", "Size");
  writer.Class("torch", "Size");
  writer.Tuple();
  writer.SetItems();
  const Pickle pickle = Parsed(writer.Take());
  const PickleValue& list = *pickle.root().Find("numbers");
  ASSERT_EQ(list.items.size(), numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(list.items[i]->integer, numbers[i]);
  const PickleValue& rest = *pickle.root().Find("rest");
  ASSERT_EQ(rest.items.size(), 6u);
  EXPECT_EQ(rest.items[0]->kind, PickleKind::kNone);
  EXPECT_EQ(rest.items[1]->kind, PickleKind::kBool);
  EXPECT_EQ(rest.items[2]->real, -0.1);
  EXPECT_EQ(rest.items[3]->text, "numbers");
  EXPECT_TRUE(rest.items[4]->IsClass("torch", "Size"));
  EXPECT_EQ(rest.items[4], rest.items[5]) << "the second comes from the memo";
  EXPECT_EQ(pickle.root().Find("no"), nullptr);
}

TEST(Pickle, DescribesObjectsWithoutExecution) {
  // Would be os.system("true").
  const Pickle call = Parsed("\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.");
  ASSERT_TRUE(call.root().IsObject("posix", "system"));
  EXPECT_EQ(call.root().arguments().items[0]->text, "true");
  EXPECT_EQ(call.root().state(), nullptr);
  EXPECT_EQ(DescribePickled(call.root()), "posix.system");
  // With items and a state: an OrderedDict.
  const Pickle dict = Parsed(
      "\x80\x02"
      "ccollections\nOrderedDict\n)RK\x01K\x02s}b.");
  ASSERT_TRUE(dict.root().IsObject("collections", "OrderedDict"));
  EXPECT_EQ(dict.root().items.size(), 5u);
  EXPECT_EQ(dict.root().items[4]->integer, 2);
  EXPECT_EQ(dict.root().state()->kind, PickleKind::kDict);
  // A reference to data that torch.save stores elsewhere.
  const Pickle outside = Parsed("\x80\x02K\x07Q.");
  EXPECT_EQ(outside.root().kind, PickleKind::kOutside);
  EXPECT_EQ(outside.root().items[0]->integer, 7);
}

TEST(Pickle, ParsesProtocol4OfPython) {
  // {"a": [1, (2, 3, 4, 5)], "b": {6}, "c": b"x", "d": 2**70} with frames and MEMOIZE.
  const std::string bytes(
      "\x80\x04\x95;\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01"
      "a\x94]\x94(K\x01(K\x02K\x03K\x04K\x05t\x94"
      "e\x8c\x01"
      "b\x94\x8f\x94(K\x06\x90\x8c\x01"
      "c\x94"
      "C\x01x\x94\x8c\x01"
      "d\x94\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00@u.",
      70);
  const Pickle pickle = Parsed(bytes);
  EXPECT_EQ(pickle.root().Find("a")->items[1]->items[3]->integer, 5);
  EXPECT_EQ(pickle.root().Find("b")->kind, PickleKind::kSet);
  EXPECT_EQ(pickle.root().Find("c")->text, "x");
  EXPECT_EQ(pickle.root().Find("d")->kind, PickleKind::kBigInt);
}

TEST(Pickle, LastDuplicateKeyWins) {
  EXPECT_EQ(Parsed("\x80\x02}(\x8c\x01xK\x01\x8c\x01xK\x02u.").root().Find("x")->integer, 2);
}

TEST(Pickle, ReportsByteOfError) {
  EXPECT_EQ(ErrorOf(""), "invalid pickle, byte 0: pickle ends without STOP");
  EXPECT_EQ(ErrorOf("\x80\x02K\x01K\x02."),
            "invalid pickle, byte 6: the stack does not hold exactly one value at STOP");
  EXPECT_EQ(ErrorOf("\x80\x02K"), "invalid pickle, byte 2: truncated opcode");
  EXPECT_EQ(ErrorOf("\x80\x09N."), "invalid pickle, byte 0: protocol 9");
  EXPECT_EQ(ErrorOf("\x80\x02i."), "invalid pickle, byte 2: opcode 0x69 is not supported");
  EXPECT_EQ(ErrorOf("\x80\x02S'x'\n."), "invalid pickle, byte 2: opcode 0x53 is not supported");
  EXPECT_EQ(ErrorOf("\x80\x02\x82\x01."), "invalid pickle, byte 2: opcode 0x82 is not supported");
  EXPECT_EQ(ErrorOf("\x80\x02h\x03."), "invalid pickle, byte 2: unknown memo 3");
  EXPECT_EQ(ErrorOf("\x80\x02Nr\xff\xff\xff\x7f."),
            "invalid pickle, byte 3: memo 2147483647 is out of order");
  EXPECT_EQ(ErrorOf("\x80\x02K\x01)R."), "invalid pickle, byte 5: the class of an object is not a name");
  EXPECT_EQ(ErrorOf("\x80\x02"
                    "ca\nb\nNR."),
            "invalid pickle, byte 8: the arguments of an object are not a tuple");
  EXPECT_EQ(ErrorOf("\x80\x02"
                    "ca\nb\n)RNbNb."),
            "invalid pickle, byte 12: second BUILD of one object");
  EXPECT_EQ(ErrorOf("\x80\x02}(K\x01u."), "invalid pickle, byte 6: key without a value");
  EXPECT_EQ(ErrorOf("\x80\x02K\x01(\x85."), "invalid pickle, byte 5: stack underflow");
  EXPECT_EQ(ErrorOf("\x80\x02t."), "invalid pickle, byte 2: no MARK on the stack");
  EXPECT_EQ(ErrorOf("\x80\x02X\xff\xff\xff\xffx."), "invalid pickle, byte 2: truncated opcode");
}

TEST(Pickle, RejectsCycles) {
  // A list that would contain itself, a list of a list that would contain the first, and a dict likewise.
  EXPECT_THAT(ErrorOf("\x80\x04]\x94h" + std::string(1, '\0') + "a."), HasSubstr("already shared"));
  EXPECT_THAT(ErrorOf("\x80\x04]\x94]\x94h" + std::string(1, '\0') + "aa."), HasSubstr("already shared"));
  EXPECT_THAT(ErrorOf("\x80\x04}2K\x01"
                      "2s."),
              HasSubstr("already shared"));
}

TEST(Pickle, ShowsClassNamesOnlyIfUtf8) {
  EXPECT_EQ(DescribePickled(Parsed("\x80\x02"
                                   "cgr\xc3\xb6sse\nK\n.")
                                .root()),
            "the class gr\xc3\xb6sse.K");
  EXPECT_EQ(DescribePickled(Parsed("\x80\x02"
                                   "c\xff\nK\n.")
                                .root()),
            "the class (not UTF-8)");
  for (const char* good : {"", "a", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf",
                           "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(IsUtf8(good)) << good;
  }
  for (const char* bad : {"\x80", "\xc1\xbf", "\xc2", "\xc2g", "\xe0\x9f\xbf", "\xed\xa0\x80",
                          "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xe2\x82"}) {
    EXPECT_FALSE(IsUtf8(bad)) << bad;
  }
}

TEST(Pickle, EnforcesLimits) {
  PickleLimits limits;
  limits.bytes = 8;
  EXPECT_EQ(ErrorOf("\x80\x02NNNNNNNN.", limits), "pickle is too large (got 11 bytes, want at most 8)");
  limits.bytes = 1000;
  limits.values = 5;
  EXPECT_EQ(ErrorOf("\x80\x02NNNNNN.", limits), "invalid pickle, byte 7: more than 5 values");
  limits.values = 1000;
  limits.depth = 10;
  EXPECT_TRUE(Pickle::Parse("\x80\x02N" + std::string(9, '\x85') + ".", limits).ok());
  EXPECT_THAT(ErrorOf("\x80\x02N" + std::string(10, '\x85') + ".", limits),
              HasSubstr("more than 10 levels deep"));
}

TEST(Pickle, ShowsNanWithoutSign) {
  PickleWriter writer;
  writer.Float(-std::nan(""));
  EXPECT_EQ(DescribePickled(Parsed(writer.Take()).root()), "nan");
}

}  // namespace
}  // namespace fsdpd
