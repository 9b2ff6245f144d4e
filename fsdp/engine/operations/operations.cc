#include "fsdp/engine/operations/operations.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/check.h"
#include "fsdp/comm/ordered_sum.h"
#include "fsdp/kernels/sum_parts.h"
#include "fsdp/plan/program/residencies.h"
#include "fsdp/torch/scalar_type.h"

namespace fsdpd {
namespace {

constexpr bool kNonBlocking = true;  // For copies: the host does not wait.

ActivationSaving KeepOf(Recompute recompute) {
  switch (recompute) {
    case Recompute::kNone:
      return ActivationSaving::kAll;
    case Recompute::kSelective:
      return ActivationSaving::kSelective;
    case Recompute::kFull:
      return ActivationSaving::kInput;
  }
  return ActivationSaving::kAll;
}

std::vector<at::Tensor> PaddingOf(const Bucket& bucket, const at::Tensor& flat) {
  std::vector<at::Tensor> padding;
  int64_t end = 0;
  for (const ParamSlot& param : bucket.params) {
    if (param.offset > end) padding.push_back(flat.narrow(0, end, param.offset - end));
    end = param.offset + param.elements;
  }
  if (bucket.bucket_elements > end) padding.push_back(flat.narrow(0, end, bucket.bucket_elements - end));
  return padding;
}

// fp32 view of a tensor for collectives.
float* Floats(const at::Tensor& tensor) { return tensor.mutable_data_ptr<float>(); }

}  // namespace

Operations::Operations(const OperationParts& parts)
    : parts_(parts),
      optimizer_(MakeOptimizer(spec(), layout(), position(), parts.device)),
      buffers_(layout().buckets.size()),
      side_stream_(
          MakeSideStream(parts.device.is_cuda() ? std::optional<int>(parts.device.index()) : std::nullopt)),
      param_grads_(layout().units.size()),
      step_end_(parts.plan, position(), parts.start, parts.device),
      micro_batches_(spec().micro_batches_per_step()),
      stage_buffers_(*parts.plan, position(), parts.device) {
  const at::NoGradGuard no_grad;
  grad_loss_ = at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(parts.device));
  recording_failures_ = at::zeros_like(grad_loss_);
  MakeInputs();
  MakeBuffers();
  for (size_t b = 0; b < buffers_.size(); ++b) {
    const auto bucket = static_cast<int>(b);
    const Bucket& of = layout().buckets[b];
    if (!of.trainable) continue;
    // Gradients that are not sharded stay in their buffer.
    if (of.groups.shard == Group::kSelf) parts_.params->BindGradShard(bucket, buffers_[b].reduce);
    if (buffers_[b].state.defined()) buffers_[b].staged = parts_.params->Staged(bucket, buffers_[b].state);
  }
  MakeSquares();
  for (size_t u = 0; u < layout().units.size(); ++u) BindUnit(static_cast<int>(u));
  if (parts_.start.step > 0) optimizer_->Restore(parts_.start.steps_taken);
}

void Operations::MakeSquares() {
  for (size_t b = 0; b < buffers_.size(); ++b) {
    const Bucket& bucket = layout().buckets[b];
    if (!bucket.trainable) continue;
    const int64_t stages = bucket.tied_replica == TiedReplica::kNone ? 1 : 2;
    const int64_t copies = stages * spec().mesh.world() / spec().mesh.size(Axis::kPipeline) / bucket.owners();
    if (SquaresComeWithSums(spec(), bucket)) {
      const int64_t parts = kernels::SquaresOf(bucket.shard_elements);
      buffers_[b].squares = squares_.AddParts(parts, copies, parts_.device);
    } else {
      squares_.Add(parts_.params->bucket(static_cast<int>(b)).grad, copies);
    }
  }
}

void Operations::MakeInputs() {
  const at::TensorOptions tokens = at::TensorOptions().dtype(at::kLong).device(parts_.device);
  const SequencePartition sequence = spec().SequenceOf(position().rank);
  std::vector<int64_t> positions;  // Positions of this rank's tokens in their samples.
  for (int64_t t = 0; t < sequence.tokens(); ++t) positions.push_back(sequence.PositionOf(t));
  for (MicroBatch& each : micro_batches_) {
    for (at::Tensor* input : {&each.input.tokens, &each.input.targets})
      *input = at::zeros({spec().micro_batch, sequence.tokens()}, tokens);
    if (spec().data.document_end_token.has_value()) {
      each.input.positions = at::zeros_like(each.input.tokens);
      if (parts_.device.is_cuda())
        each.bounds_buffer =
            at::zeros({MaxBounds(spec().micro_batch, sequence.tokens())}, tokens.dtype(at::kInt));
    }
    if (sequence.ranks == 1) continue;
    each.input.positions =
        at::tensor(positions).to(parts_.device).expand({spec().micro_batch, -1}).contiguous();
  }
}

void Operations::MakeBuffers() {
  for (const Buffer& buffer : parts_.plan->program.buffers) {
    BucketBuffers& of = buffers_[buffer.bucket];
    const BucketTypes& types = layout().buckets[buffer.bucket].types;
    const at::ScalarType gradient = ScalarTypeOf(types.grad_comm);
    switch (buffer.kind) {
      case BufferKind::kGathered: {
        const Bucket& bucket = layout().buckets[buffer.bucket];
        of.gathered = bucket.read_in_place()
                          ? GatheredBucket::InPlace(bucket, parts_.params->bucket(buffer.bucket).stored())
                          : GatheredBucket(bucket, parts_.arena->View(buffer, at::kByte));
        break;
      }
      case BufferKind::kReplica:
        of.replica = parts_.arena->View(buffer, ScalarTypeOf(types.replica()));
        break;
      case BufferKind::kReduce:
        of.reduce = parts_.arena->View(buffer, gradient);
        of.padding = PaddingOf(layout().buckets[buffer.bucket], of.reduce);
        break;
      case BufferKind::kWire: {
        Buffer sums = buffer, received = buffer;
        sums.bytes = SumBytes(spec(), layout().buckets[buffer.bucket]);
        received.offset += sums.bytes;
        received.bytes -= sums.bytes;
        of.sums = parts_.arena->View(sums, at::kFloat);
        of.wire = parts_.arena->View(received, gradient);
        break;
      }
      case BufferKind::kState:
        of.state = parts_.arena->View(buffer, at::kByte);
        break;
    }
  }
  for (size_t b = 0; b < buffers_.size(); ++b) {
    const Bucket& bucket = layout().buckets[b];
    FSDPD_CHECK(buffers_[b].gathered.defined());
    FSDPD_CHECK(buffers_[b].reduce.defined() == bucket.trainable);
  }
}

// Own parameters, then those that are borrowed.
void Operations::BindUnit(int unit) {
  std::vector<BoundParam> params;
  at::Tensor choices;
  for (int from = unit; from >= 0; from = from == unit ? layout().units[unit].borrows : -1) {
    for (const ParamPlace& place : layout().units[from].params) {
      const ParamSlot& slot = layout().buckets[place.bucket].params[place.slot];
      const BucketBuffers& bucket = buffers_[place.bucket];
      const auto view = [&slot](const at::Tensor& flat) {
        return flat.narrow(0, slot.offset, slot.elements).view(slot.shape);
      };
      params.push_back(bucket.gathered.Param(slot));
      const int64_t begin = layout().buckets[place.bucket].choices_begin;
      if (begin >= 0) choices = step_end_.ExpertLoads(begin, slot.elements);
      param_grads_[unit].push_back(bucket.reduce.defined() ? view(bucket.reduce) : at::Tensor());
    }
  }
  contexts_.push_back(std::make_unique<MeshContext>(
      parts_.mesh, &layout().units[unit], side_stream_.get(), grad_loss_,
      MeshContext::RoutingBuffers{step_end_.RoutingSums(), std::move(choices),
                                  step_end_.Sum(StepEnd::kExpertOverflow), &expert_capacity_}));
  (*parts_.units)[unit]->Bind(params, contexts_.back().get());
}

void Operations::BeginStep(const StepInputs& inputs, const std::vector<Batch>& batches, int result_slot) {
  FSDPD_CHECK(batches.size() == micro_batches_.size());
  const at::NoGradGuard no_grad;
  evaluating_ = false;
  result_slot_ = result_slot;
  optimizer_->BeginStep(inputs.step);
  int64_t counted = 0;
  for (size_t m = 0; m < batches.size(); ++m) {
    micro_batches_[m].Load(batches[m]);
    counted += batches[m].counted;
  }
  step_end_.BeginStep(inputs, counted);
  grad_loss_.copy_(step_end_.loss_scale()).div_(static_cast<double>(spec().tokens_per_step()));
}

void Operations::BeginEvaluation(const Batch& batch, int result_slot) {
  const at::NoGradGuard no_grad;
  evaluating_ = true;
  result_slot_ = result_slot;
  micro_batches_[0].Load(batch);
  step_end_.BeginEvaluation(batch.counted);
}

void Operations::MicroBatch::Load(const Batch& batch) {
  input.tokens.copy_(batch.tokens, /*non_blocking=*/true);
  input.targets.copy_(batch.targets, /*non_blocking=*/true);
  if (batch.positions.defined()) LoadDocuments(batch);
  input.hidden = at::Tensor();
  grad_hidden = at::Tensor();
}

// Sets bounds only for CUDA: no CPU kernel reads them.
void Operations::MicroBatch::LoadDocuments(const Batch& batch) {
  input.positions.copy_(batch.positions, /*non_blocking=*/true);
  input.documents.starts = batch.documents.starts;
  if (!bounds_buffer.defined()) return;
  const auto bounds = static_cast<int64_t>(batch.documents.starts.size()) + 1;
  input.documents.bounds = bounds_buffer.narrow(0, 0, bounds);
  input.documents.bounds.copy_(batch.documents.bounds.narrow(0, 0, bounds), /*non_blocking=*/true);
}

absl::Status Operations::Run(const Instruction& instruction, bool saves) {
  const at::NoGradGuard no_grad;  // Units enable gradients themselves.
  const Fp8Watch::Scope watch(step_end_.fp8_watch());
  switch (instruction.op) {
    case Op::kGatherReplica:
      return GatherReplica(instruction);
    case Op::kGather:
      return Gather(instruction);
    case Op::kForward:
      return Forward(instruction);
    case Op::kRelease:
      return absl::OkStatus();  // Only marks the end of a lifetime in the plan.
    case Op::kOffloadActivations:
      parts_.offloaded->Offload(instruction.unit);
      return absl::OkStatus();
    case Op::kDropActivations:
      parts_.offloaded->Drop(instruction.unit);
      return absl::OkStatus();
    case Op::kFetchActivations:
      parts_.offloaded->Fetch(instruction.unit);
      return absl::OkStatus();
    case Op::kBackward:
      return Backward(instruction);
    case Op::kBackwardWeights:
      return BackwardWeights(instruction);
    case Op::kForwardBackward:
      return ForwardBackward(instruction);
    case Op::kReduce:
      return Reduce(instruction);
    case Op::kReduceOuter:
      return ReduceOuter(instruction);
    case Op::kNorm:
      return step_end_.Norm(squares_.Sum(), GroupOf(instruction), optimizer_.get(), result_slot_);
    case Op::kUpdate:
      Update(instruction.bucket);
      return absl::OkStatus();
    case Op::kLoss:
      return step_end_.Loss(GroupOf(instruction), result_slot_);
    case Op::kSend:
    case Op::kReceive:
    case Op::kSendGrad:
    case Op::kReceiveGrad:
      return TransferHidden(instruction);
    case Op::kSendTiedGrad:
    case Op::kReceiveTiedGrad:
      return ExchangeTiedGrad(instruction);
    case Op::kSnapshot:
      if (parts_.snapshot != nullptr && saves)
        parts_.snapshot->Take(instruction.bucket, ShardOf(instruction.bucket));
      return absl::OkStatus();
    case Op::kFetch:
      buffers_[instruction.bucket].state.copy_(parts_.params->host_copy(instruction.bucket), kNonBlocking);
      return absl::OkStatus();
    case Op::kOffload:
      parts_.params->host_copy(instruction.bucket).copy_(buffers_[instruction.bucket].state, kNonBlocking);
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status Operations::GatherReplica(const Instruction& instruction) {
  const Bucket& bucket = BucketOf(instruction);
  const at::Tensor& replica = buffers_[instruction.bucket].replica;
  const int64_t elements = bucket.main_elements, own = position().IndexIn(bucket.groups.pieces);
  replica.narrow(0, own * elements, elements).copy_(parts_.params->bucket(instruction.bucket).stored());
  return GroupOf(instruction)->AllGather(replica.mutable_data_ptr(), elements, bucket.types.replica());
}

absl::Status Operations::Gather(const Instruction& instruction) {
  const Bucket& bucket = BucketOf(instruction);
  if (bucket.read_in_place()) return absl::OkStatus();  // The instruction only marks the order.
  const BucketBuffers& buffers = buffers_[instruction.bucket];
  const BucketRange own = ShardRange(bucket, position());
  buffers.gathered.Write(
      own, buffers.replica.defined() ? buffers.replica : parts_.params->bucket(instruction.bucket).stored());
  if (instruction.group == Group::kSelf) return absl::OkStatus();
  return buffers.gathered.Gather(own, GroupOf(instruction));
}

// Exchanges hidden states with the next or the previous stage. Stages form a ring: with interleaved runs, the
// last stage is followed by the next run of the first stage.
absl::Status Operations::TransferHidden(const Instruction& instruction) {
  Communicator* const stages = GroupOf(instruction);
  const int other = (stages->rank() + TransferDirection(instruction.op) + stages->size()) % stages->size();
  const int64_t count = layout().stage.hidden_elements;
  const DType type = layout().stage.hidden_type;
  const StageBuffers::Buffers& buffers = stage_buffers_.Of(instruction);
  return StageTransferOf(instruction.op) == StageTransfer::kReceives
             ? stages->Receive(buffers.in.mutable_data_ptr(), count, type, other)
             : stages->Send(buffers.out.const_data_ptr(), count, type, other);
}

// Sums the gradients of tied embeddings between the first and the last stage. Addition of two numbers is
// commutative, so both stages get bit-identical sums.
absl::Status Operations::ExchangeTiedGrad(const Instruction& instruction) {
  Communicator* const stages = GroupOf(instruction);
  const at::Tensor& grad = parts_.params->bucket(instruction.bucket).grad;
  const DType type = BucketOf(instruction).types.gradient;
  const int other = layout().stage.first() ? stages->size() - 1 : 0;
  if (StageTransferOf(instruction.op) == StageTransfer::kSends)
    return stages->Send(grad.const_data_ptr(), grad.numel(), type, other);
  if (!instruction.accumulate) return stages->Receive(grad.mutable_data_ptr(), grad.numel(), type, other);
  const at::Tensor received = at::empty_like(grad);
  FSDPD_RETURN_IF_ERROR(stages->Receive(received.mutable_data_ptr(), grad.numel(), type, other));
  grad.add_(received);
  return absl::OkStatus();
}

// Takes the input that another stage sent. Cloned, since units keep it until backward and the buffer is
// reused.
void Operations::TakeReceived(const Instruction& instruction) {
  const at::Tensor& buffer = stage_buffers_.Of(instruction).in;
  if (!buffer.defined()) return;
  MicroBatch& current = micro_batches_[instruction.micro_batch];
  (instruction.op == Op::kBackward ? current.grad_hidden : current.input.hidden) = buffer.clone();
}

// Copies the output for another stage. The size must match the plan, which the receiver relies on. One
// MicroBatch per micro-batch suffices even if a stage runs several runs of layers: a micro-batch passes
// through the other stages before it reaches this stage's next run.
absl::Status Operations::FinishPass(const Instruction& instruction) {
  FSDPD_RETURN_IF_ERROR(contexts_[instruction.unit]->TakeStatus());
  const at::Tensor& buffer = stage_buffers_.Of(instruction).out;
  if (!buffer.defined()) return absl::OkStatus();
  MicroBatch& current = micro_batches_[instruction.micro_batch];
  const at::Tensor made =
      std::move(instruction.op == Op::kForward ? current.input.hidden : current.grad_hidden);
  if (made.numel() != buffer.numel() || made.scalar_type() != buffer.scalar_type())
    return absl::InternalError(absl::StrCat("pipeline stage: wrong output (got ", made.numel(), " ",
                                            at::toString(made.scalar_type()), ", want ", buffer.numel(), " ",
                                            at::toString(buffer.scalar_type()), ")"));
  buffer.copy_(made.view_as(buffer));
  return absl::OkStatus();
}

absl::Status Operations::Forward(const Instruction& instruction) {
  TakeReceived(instruction);
  MicroBatch& current = micro_batches_[instruction.micro_batch];
  UnitOutput output = UnitOf(instruction)
                          ->Forward(instruction.micro_batch, current.input,
                                    evaluating_ ? ActivationSaving::kNothing : KeepOf(instruction.recompute));
  current.input.hidden = std::move(output.hidden);
  if (output.loss.defined()) step_end_.Sum(StepEnd::kLossSum).add_(output.loss);
  if (IsOffloaded(instruction.unit) && !evaluating_)
    parts_.offloaded->Take(instruction.unit, instruction.micro_batch, UnitOf(instruction));
  return FinishPass(instruction);
}

// Shards are reduced, measured and updated including their padding, which must be 0.
void Operations::ZeroPadding(const Instruction& instruction) {
  if (instruction.accumulate) return;
  for (const int unit : UnitsUsedBy(layout(), instruction.unit)) {
    for (const int bucket : layout().units[unit].buckets) {
      for (const at::Tensor& padding : buffers_[bucket].padding) padding.zero_();
    }
  }
}

absl::Status Operations::Backward(const Instruction& instruction) {
  TakeReceived(instruction);
  ZeroPadding(instruction);
  MicroBatch& current = micro_batches_[instruction.micro_batch];
  const at::Tensor grad_out = std::move(current.grad_hidden);
  if (IsOffloaded(instruction.unit))
    parts_.offloaded->PutBack(instruction.unit, instruction.micro_batch, UnitOf(instruction));
  current.grad_hidden = UnitOf(instruction)
                            ->Backward(instruction.micro_batch, grad_out,
                                       {param_grads_[instruction.unit], instruction.accumulate},
                                       instruction.defers_grads ? WeightGrads::kLater : WeightGrads::kNow);
  return FinishPass(instruction);
}

absl::Status Operations::BackwardWeights(const Instruction& instruction) {
  UnitOf(instruction)
      ->BackwardWeights(instruction.micro_batch, {param_grads_[instruction.unit], instruction.accumulate});
  return contexts_[instruction.unit]->TakeStatus();
}

absl::Status Operations::ForwardBackward(const Instruction& instruction) {
  TakeReceived(instruction);
  ZeroPadding(instruction);
  MicroBatch& current = micro_batches_[instruction.micro_batch];
  UnitInput input = current.input;
  current.input.hidden = at::Tensor();
  Unit::LossAndGrad result = UnitOf(instruction)
                                 ->ForwardBackward(instruction.micro_batch, input, grad_loss_,
                                                   {param_grads_[instruction.unit], instruction.accumulate});
  step_end_.Sum(StepEnd::kLossSum).add_(result.loss);
  current.grad_hidden = std::move(result.grad_hidden);
  return FinishPass(instruction);
}

absl::Status Operations::Reduce(const Instruction& instruction) {
  const Bucket& bucket = BucketOf(instruction);
  const BucketBuffers& buffers = buffers_[instruction.bucket];
  Communicator* const group = GroupOf(instruction);
  const at::Tensor& whole = buffers.reduce;
  if (bucket.groups.shard == Group::kSelf) return group->AllReduce(Floats(whole), whole.numel());
  if (SumsInOneKernel(spec(), bucket)) return ReduceInOneKernel(instruction);
  const at::Tensor& grad = parts_.params->grad_shard(instruction.bucket);
  const int64_t elements = grad.numel();
  const bool narrow_wire = bucket.types.grad_comm != DType::kFp32;  // On the CPU.
  // Reduce-scatter sums in fp32: into the gradient shard directly, or into a temporary buffer that is added
  // or converted.
  at::Tensor sum = grad;
  if (instruction.accumulate || grad.scalar_type() != at::kFloat) {
    sum = narrow_wire ? buffers.sums.narrow(0, 0, elements)
                      : whole.narrow(0, ShardRange(bucket, position()).begin, elements);
  }
  void* scratch = narrow_wire ? buffers.wire.mutable_data_ptr() : nullptr;
  FSDPD_RETURN_IF_ERROR(
      group->ReduceScatter(whole.mutable_data_ptr(), scratch, Floats(sum), elements, bucket.types.grad_comm));
  if (instruction.accumulate && grad.is_cpu()) {
    AddSums(Floats(sum), elements, bucket.types.gradient, grad.mutable_data_ptr());
  } else if (instruction.accumulate) {
    grad.add_(sum);
  } else if (!sum.is_same(grad)) {
    grad.copy_(sum);
  }
  return absl::OkStatus();
}

// Computes the squares for the norm in the same kernel. Each micro-batch overwrites them with those of the
// sum so far, so the last one leaves those of the final gradient.
absl::Status Operations::ReduceInOneKernel(const Instruction& instruction) {
  const Bucket& bucket = BucketOf(instruction);
  const BucketBuffers& buffers = buffers_[instruction.bucket];
  const at::Tensor& grad = parts_.params->grad_shard(instruction.bucket);
  FSDPD_RETURN_IF_ERROR(GroupOf(instruction)
                            ->AllToAll(buffers.reduce.const_data_ptr(), buffers.wire.mutable_data_ptr(),
                                       grad.numel(), bucket.types.grad_comm));
  kernels::SumPartsArgs args = {};
  args.parts = buffers.wire.const_data_ptr();
  args.sum = grad.mutable_data_ptr();
  args.squares = buffers.squares.defined() ? buffers.squares.mutable_data_ptr<float>() : nullptr;
  args.count = grad.numel();
  args.ranks = static_cast<int>(bucket.shards);
  args.rank = GroupOf(instruction)->rank();
  args.own = buffers.reduce.narrow(0, args.rank * args.count, args.count).const_data_ptr();
  args.addend = instruction.accumulate ? args.sum : nullptr;
  args.type = bucket.types.grad_comm;
  args.sum_type = bucket.types.gradient;
  kernels::SumParts(args, kernels::CurrentStream(grad.get_device()));
  return absl::OkStatus();
}

absl::Status Operations::ReduceOuter(const Instruction& instruction) {
  const Bucket& bucket = BucketOf(instruction);
  // The gradient is fp32: the spec rules require it with replicas.
  const at::Tensor& grad = parts_.params->grad_shard(instruction.bucket);
  if (bucket.pieces == 1) return GroupOf(instruction)->AllReduce(Floats(grad), grad.numel());
  const int64_t own = position().IndexIn(bucket.groups.pieces) * bucket.main_elements;
  return GroupOf(instruction)
      ->ReduceScatter(grad.mutable_data_ptr(), nullptr, Floats(grad) + own, bucket.main_elements,
                      DType::kFp32);
}

void Operations::Update(int bucket) {
  const Bucket& of = layout().buckets[bucket];
  const BucketShard& shard = ShardOf(bucket);
  if (!of.is_selection_bias()) return optimizer_->Update(bucket, shard, step_end_.scalars());
  for (const BucketPiece& piece : PiecesOf(of, MainRange(of, position()))) {
    shard.main.narrow(0, piece.range_begin, piece.elements)
        .add_(step_end_.bias_steps().narrow(0, of.choices_begin + piece.param_begin, piece.elements));
  }
}

absl::Status Operations::Recordable() const {
  if (layout().stage.count > 1)
    return absl::FailedPreconditionError("parallel.pipeline is not supported with CUDA graphs");
  if (spec().data.document_end_token.has_value())
    return absl::FailedPreconditionError("data.document_end_token is not supported with CUDA graphs");
  if (!std::all_of(parts_.units->begin(), parts_.units->end(),
                   [](const std::unique_ptr<Unit>& unit) { return unit->Recordable(); }))
    return absl::FailedPreconditionError("a unit of this model does not support CUDA graphs");
  return absl::OkStatus();
}

void Operations::BeginRecording(int result_slot) {
  evaluating_ = false;
  result_slot_ = result_slot;
}

void Operations::ForgetRecording() {
  for (const std::unique_ptr<Unit>& unit : *parts_.units) unit->Forget();
  if (parts_.offloaded != nullptr) parts_.offloaded->Forget();
}

void Operations::GrowExpertCapacity(double expert_capacity) {
  const at::NoGradGuard no_grad;
  expert_capacity_ = expert_capacity;
  step_end_.ForgetOverflow();
}

absl::Status Operations::ReduceRecordingFailures(bool recorded) {
  recording_failures_.fill_(recorded ? 0 : 1);
  return parts_.mesh->all()->AllReduce(Floats(recording_failures_), 1);
}

}  // namespace fsdpd
