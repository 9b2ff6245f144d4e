#include "fsdp/checkpoint/megatron_files.h"

#include "base/check.h"
#include "fsdp/checkpoint/durable_file.h"
#include "fsdp/checkpoint/pickle_writer.h"
#include "fsdp/checkpoint/torch_save.h"

namespace fsdpd {
namespace {

constexpr char kMetadata[] =
    R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", )"
    R"("common_backend_version": 1})";
// Of Megatron's checkpoints.
constexpr double kCheckpointVersion = 3.0;

std::string CommonOf(int64_t iteration) {
  PickleWriter writer;
  writer.EmptyDict();
  writer.Mark();
  writer.Text("iteration");
  writer.Int(iteration);
  writer.Text("checkpoint_version");
  writer.Float(kCheckpointVersion);
  // Whoever loads asks for tensors as this says that they are.
  writer.Text("content_metadata");
  writer.EmptyDict();
  writer.Mark();
  writer.Text("singleton_local_shards");
  writer.Bool(false);
  writer.Text("non_homogeneous_layers");
  writer.Bool(false);
  writer.SetItems();
  writer.SetItems();
  return TorchSaved(writer.Take());
}

}  // namespace

absl::Status WriteMegatronFiles(const std::string& folder, int64_t iteration) {
  FSDPD_RETURN_IF_ERROR(ReplaceFile(folder, kMegatronCommonName, CommonOf(iteration)));
  FSDPD_RETURN_IF_ERROR(ReplaceFile(folder, kMegatronMetadataName, kMetadata));
  return SyncFolder(folder);
}

}  // namespace fsdpd
