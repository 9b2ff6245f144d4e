// Metadata that ReadMetadata rejects. dcp_writer_test and tests/parity cover round trips and torch.
#include "fsdp/checkpoint/dcp/dcp_metadata.h"

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "fsdp/checkpoint/format/pickle_writer.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

constexpr char kModule[] = "torch.distributed.checkpoint.metadata";

// A Metadata object with these dicts.
std::string Metadata(const std::function<void(PickleWriter*)>& entries,
                     const std::function<void(PickleWriter*)>& places) {
  PickleWriter writer;
  writer.Class(kModule, "Metadata");
  writer.EmptyTuple();
  writer.NewObject();
  writer.BeginDict();
  for (const auto& [key, write] :
       {std::make_pair("state_dict_metadata", entries), std::make_pair("storage_data", places)}) {
    writer.Text(key);
    writer.BeginDict();
    write(&writer);
    writer.SetItems();
  }
  writer.SetItems();
  writer.Build();
  return writer.Take();
}

void Object(PickleWriter* writer, const char* name, const std::function<void()>& state) {
  writer->Class(kModule, name);
  writer->EmptyTuple();
  writer->NewObject();
  writer->BeginDict();
  state();
  writer->SetItems();
  writer->Build();
}

void Place(PickleWriter* writer, const std::string& name, const std::string& file = "f") {
  Object(writer, "MetadataIndex", [&] {
    writer->Text("fqn");
    writer->Text(name);
  });
  Object(writer, "_StorageInfo", [&] {
    writer->Text("relative_path");
    writer->Text(file);
    for (const char* key : {"offset", "length"}) {
      writer->Text(key);
      writer->Int(7);
    }
  });
}

void Value(PickleWriter* writer, const std::string& name) {
  writer->Text(name);
  Object(writer, "BytesStorageMetadata", [] {});
}

const auto kNone = [](PickleWriter*) {};

std::string ErrorOf(const std::string& bytes) {
  const absl::StatusOr<DcpIndex> index = ReadMetadata(bytes);
  EXPECT_TRUE(absl::IsDataLoss(index.status())) << index.status();
  return std::string(index.status().message());
}

TEST(DcpMetadata, MatchesEntriesAndPlacesByName) {
  const auto index = ReadMetadata(Metadata(
      [](PickleWriter* writer) {
        Value(writer, "b");
        Value(writer, "a");
      },
      [](PickleWriter* writer) { Place(writer, "a"); }));
  ASSERT_TRUE(index.ok()) << index.status();
  ASSERT_EQ(index->values.size(), 2u);
  EXPECT_EQ(index->values[0].name, "a");
  EXPECT_EQ(index->values[0].place, (DcpPlace{0, 7, 7, ""}));
  EXPECT_EQ(index->values[1].place, DcpPlace()) << "which CheckIndex tells";
}

TEST(DcpMetadata, RejectsOtherPickles) {
  EXPECT_THAT(ErrorOf("\x80\x02}."), HasSubstr("got a dict"));
  EXPECT_THAT(ErrorOf("\x80\x02"
                      "cos\nsystem\n)R."),
              HasSubstr("got os.system"));
  EXPECT_THAT(ErrorOf(absl::StrCat("\x80\x02"
                                   "c",
                                   kModule, "\nMetadata\n)\x81.")),
              HasSubstr("storage_data is missing"));
}

TEST(DcpMetadata, RejectsContradictions) {
  const auto twice = [](PickleWriter* writer) {
    Place(writer, "a");
    Place(writer, "a", "g");
  };
  EXPECT_THAT(ErrorOf(Metadata(kNone, twice)), HasSubstr("duplicate storage_data entry for a chunk of a"));
  const auto same_name = [](PickleWriter* writer) {
    Value(writer, "a");
    Value(writer, "a");
  };
  EXPECT_THAT(ErrorOf(Metadata(same_name, kNone)), HasSubstr("duplicate entry a"));
}

TEST(DcpMetadata, RejectsNamesThatAreNotUtf8) {
  EXPECT_THAT(ErrorOf(Metadata([](PickleWriter* writer) { Value(writer, "\xff"); }, kNone)),
              HasSubstr("an entry name is not a string"));
  EXPECT_THAT(ErrorOf(Metadata([](PickleWriter* writer) { Value(writer, std::string(5000, 'n')); }, kNone)),
              HasSubstr("an entry name is not a string"));
  EXPECT_THAT(ErrorOf(Metadata(kNone, [](PickleWriter* writer) { Place(writer, "a", "\xff"); })),
              HasSubstr("lacks name, file, offset or length"));
}

// A tensor of 200 chunks under `names` names, which share it.
std::string SharedChunks(int names) {
  const auto size = [](PickleWriter* writer, const char* key, int64_t number) {
    writer->Text(key);
    writer->Int(number);
    writer->TupleOf(1);
  };
  const auto entries = [&](PickleWriter* writer) {
    int64_t tensor = 0;
    for (int i = 0; i < names; ++i) {
      writer->Text(absl::StrCat(i));
      if (i > 0) {
        writer->Again(tensor);
        continue;
      }
      Object(writer, "TensorStorageMetadata", [&] {
        writer->Text("properties");
        writer->Class(kModule, "TensorProperties");
        writer->EmptyTuple();
        writer->NewObject();
        writer->Mark();
        writer->Class("torch", "float32");
        writer->Tuple();
        writer->Build();
        size(writer, "size", 200);
        writer->Text("chunks");
        writer->BeginList();
        for (int64_t chunk = 0; chunk < 200; ++chunk) {
          Object(writer, "ChunkStorageMetadata", [&] {
            size(writer, "offsets", chunk);
            size(writer, "sizes", 1);
          });
        }
        writer->Appends();
      });
      tensor = writer->Remember();
    }
  };
  return Metadata(entries, kNone);
}

// A few kilobytes must not expand to gigabytes of chunks.
TEST(DcpMetadata, LimitsSharedChunks) {
  const auto one = ReadMetadata(SharedChunks(1));
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(one->tensors[0].chunks.size(), 200u);
  EXPECT_THAT(ErrorOf(SharedChunks(1000)), HasSubstr("more sizes and offsets than the file has bytes"));
}

TEST(DcpMetadata, RejectsLongTypeName) {
  std::string bytes = SharedChunks(1);
  bytes.replace(bytes.find("float32"), 7, std::string(5000, 'f'));
  EXPECT_THAT(ErrorOf(bytes), HasSubstr("invalid dtype of 0"));
}

// Searching it for many objects would take very long.
TEST(DcpMetadata, RejectsStateWithManyFields) {
  const auto many = [](PickleWriter* writer) {
    Object(writer, "MetadataIndex", [&] {
      writer->Text("fqn");
      writer->Text("a");
      for (int i = 0; i < 100; ++i) {
        writer->Text(absl::StrCat(i));
        writer->None();
      }
    });
    writer->None();
  };
  EXPECT_THAT(ErrorOf(Metadata(kNone, many)), HasSubstr("lacks name"));
}

}  // namespace
}  // namespace fsdpd
