// tests/parity/test_checkpoint.py shows that torch reads, and would write, these bytes.
#include "fsdp/checkpoint/format/torch_save.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdp/checkpoint/format/crc32.h"
#include "fsdp/checkpoint/format/pickle_writer.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

std::string Saved(const TensorType& type, const std::vector<int64_t>& shape) {
  const TorchSaveFrame frame = FrameOf(type, shape);
  const std::string data(frame.data_bytes, '\7');
  std::string bytes = frame.head + data + TailOf(type, shape, Crc32(data.data(), frame.data_bytes));
  EXPECT_EQ(static_cast<int64_t>(bytes.size()), frame.bytes());
  return bytes;
}

absl::StatusOr<SavedTensor> Read(const std::string& bytes) {
  return ReadSavedTensor(static_cast<int64_t>(bytes.size()), ReadAtOf(bytes));
}

TEST(TorchSave, RoundTripsAllTypesAndShapes) {
  for (const char* name :
       {"float32", "bfloat16", "float16", "float64", "int64", "uint8", "bool", "float8_e4m3fn", "uint16"}) {
    const TensorType& type = *FindTensorType(name);
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{}, {7}, {0}, {3, 5}, {0, 4}, {2, 3, 4}, {2, 1, 3, 2}}) {
      const std::string bytes = Saved(type, shape);
      const auto tensor = Read(bytes);
      ASSERT_TRUE(tensor.ok()) << name << " " << tensor.status();
      EXPECT_EQ(tensor->type, &type);
      EXPECT_EQ(tensor->shape, shape);
      EXPECT_TRUE(tensor->row_major());
      EXPECT_EQ(tensor->storage.begin % 64, 0);
      EXPECT_EQ(tensor->storage.size, *BytesOf(type, shape));
    }
  }
}

TEST(TorchSave, RejectsTensorBeyondStorage) {
  std::string bytes = Saved(*FindTensorType("float32"), {2, 3});
  // Changes the first size in the pickle, and its checksums: [9, 3] of 24 bytes.
  const size_t at = bytes.find("K\x02K\x03\x86");
  ASSERT_NE(at, std::string::npos);
  bytes[at + 1] = 9;
  EXPECT_THAT(std::string(Read(bytes).status().message()),
              HasSubstr("checksum mismatch in archive/data.pkl"));
}

TEST(TorchSave, RoundTripsValue) {
  PickleWriter writer;
  writer.Int(42);
  const std::string bytes = TorchSaved(writer.Take());
  const auto value = ReadSavedValue(static_cast<int64_t>(bytes.size()), ReadAtOf(bytes));
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ(value->root().integer, 42);
  EXPECT_TRUE(absl::IsUnimplemented(Read(bytes).status()));
  EXPECT_THAT(std::string(Read(bytes).status().message()), HasSubstr("expected a tensor, found 42"));
}

// A file with impossible tensor metadata: torch's pickle with other numbers.
std::string WithNumbers(int64_t first, std::vector<int64_t> shape, std::vector<int64_t> strides) {
  PickleWriter writer;
  writer.Class("torch._utils", "_rebuild_tensor_v2");
  writer.Mark();
  writer.Mark();
  for (const char* text : {"storage", "", "0", "cpu"}) {
    *text == '\0' ? writer.Class("torch", "FloatStorage") : writer.Text(text);
  }
  writer.Int(6);
  writer.Tuple();
  writer.Outside();
  writer.Int(first);
  for (const std::vector<int64_t>* numbers : {&shape, &strides}) {
    writer.Mark();
    for (const int64_t number : *numbers) writer.Int(number);
    writer.Tuple();
  }
  writer.Tuple();
  writer.Reduce();
  ZipWriter zip;
  zip.Add("x/data.pkl", writer.Take());
  zip.Add("x/data/0", std::string(24, '\0'));
  zip.Finish();
  return zip.Take();
}

std::string WithPickle(const std::string& pickle, const std::string& order = "little") {
  ZipWriter zip;
  zip.Add("x/data.pkl", pickle);
  zip.Add("x/byteorder", order);
  zip.Add("x/data/0", std::string(24, '\0'));
  zip.Finish();
  return zip.Take();
}

absl::Status ValueErrorOf(const std::string& bytes) {
  return ReadSavedValue(static_cast<int64_t>(bytes.size()), ReadAtOf(bytes)).status();
}

// `count` values that are popped again, and a 7.
std::string LongPickle(size_t count) {
  std::string pickle = "\x80\x02";
  for (size_t i = 0; i < count; ++i) pickle += "N0";
  return pickle + "K\x07.";
}

// 40 MB on disk must not become gigabytes in memory.
TEST(TorchSave, LimitsTensorPickle) {
  EXPECT_THAT(std::string(Read(WithPickle(LongPickle(40000))).status().message()),
              HasSubstr("x/data.pkl is too large (got 80005 bytes, want at most 65536)"));
  EXPECT_THAT(std::string(Read(WithPickle(LongPickle(5000))).status().message()),
              HasSubstr("more than 4096 values"));
  EXPECT_TRUE(ValueErrorOf(WithPickle(LongPickle(40000))).ok()) << "which may be larger";
}

// Pickles that torch can load, and large ones: not supported, but not damaged.
TEST(TorchSave, UnsupportedValueIsNotDamaged) {
  const std::string itself = std::string("\x80\x02}q\0", 5) + std::string("K\1h\0s.", 6);
  for (const std::string& pickle : {std::string("I7\n."), itself, LongPickle(1 << 20)}) {
    const absl::Status status = ValueErrorOf(WithPickle(pickle));
    EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  }
  std::string bytes = WithPickle("I7\n.");
  bytes[bytes.find("I7")] = 'J';
  EXPECT_TRUE(absl::IsDataLoss(ValueErrorOf(bytes))) << "of which its checksum is another";
}

TEST(TorchSave, MessagesAreUtf8) {
  const auto of_storage = [](const std::string& name, const std::string& key) {
    const auto text = [](const std::string& of) {
      return "X" + std::string(1, static_cast<char>(of.size())) + std::string(3, '\0') + of;
    };
    return "\x80\x02" + std::string("ctorch._utils\n_rebuild_tensor_v2\n((") + text("storage") + "ctorch\n" +
           name + "\n" + text(key) + "tQK\1))tR.";
  };
  for (const std::string& bytes :
       {WithPickle(of_storage("\xff", "0")), WithPickle(of_storage("FloatStorage", "\xff")),
        WithPickle("K\7.", "\xff"), WithPickle("c\xff\n\xff\n.")}) {
    const absl::Status status = Read(bytes).status();
    EXPECT_FALSE(status.ok());
    EXPECT_TRUE(IsUtf8(status.message())) << status;
  }
}

TEST(TorchSave, RejectsElementsOutsideStorage) {
  EXPECT_TRUE(Read(WithNumbers(0, {2, 3}, {3, 1})).ok());
  const auto transposed = Read(WithNumbers(0, {3, 2}, {1, 3}));
  ASSERT_TRUE(transposed.ok()) << transposed.status();
  EXPECT_FALSE(transposed->row_major());
  EXPECT_TRUE(Read(WithNumbers(5, {1}, {1})).ok());
  constexpr int64_t kHuge = int64_t{1} << 62;
  const std::string bad[] = {
      WithNumbers(1, {2, 3}, {3, 1}),     WithNumbers(6, {}, {}),
      WithNumbers(0, {2, 3}, {4, 1}),     WithNumbers(0, {2, 3}, {3}),
      WithNumbers(0, {-1, 3}, {3, 1}),    WithNumbers(-1, {2}, {1}),
      WithNumbers(0, {2}, {-1}),          WithNumbers(kHuge, {2}, {kHuge}),
      WithNumbers(0, {kHuge, 4}, {0, 0}), WithNumbers(0, {3, 3}, {kHuge, kHuge}),
  };
  for (const std::string& bytes : bad)
    EXPECT_TRUE(absl::IsDataLoss(Read(bytes).status())) << Read(bytes).status();
}

}  // namespace
}  // namespace fsdpd
