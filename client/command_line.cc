#include "client/command_line.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/string_view.h>
#include <absl/strings/strip.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>

#include "base/address.h"
#include "base/call_limits.h"
#include "base/cli_app.h"
#include "base/principal.h"
#include "base/spec_fault.h"
#include "base/text.h"
#include "base/trace_file.h"
#include "client/checkpoint_choice.h"
#include "client/event_flags.h"
#include "client/flag_checks.h"
#include "client/list_flags.h"
#include "client/meant_verb.h"
#include "client/node_flags.h"
#include "client/outcome.h"
#include "client/plugin_verbs.h"
#include "client/spec_array.h"
#include "client/verb_flags.h"
#include "client/wait_condition.h"

namespace fsdpd {
namespace {

constexpr char kAbout[] =
    R"(fsdpctl submits training jobs to an fsdpd coordinator and shows what becomes of them.
A job is described by a spec (YAML or JSON). A bad spec is refused with all its faults at once; `plan` says what a
good one would do before it runs. Data goes to stdout, messages to stderr.)";

constexpr char kFooter[] = R"(
Examples:
  fsdpctl validate -f job.yaml
  fsdpctl plan -f job.yaml --offline
  fsdpctl submit -f job.yaml --follow
  fsdpctl get --state running -o json

Exit codes:
  0 ok   1 the job did not do what was waited for, or specs differ   2 wrong usage   3 spec refused   4 not found
  5 server or node unavailable   6 timeout   7 any other refusal or failure   8 output not written
  9 damaged checkpoint   10 checkpoints differ   130 interrupted

Environment:
  FSDPD_SERVER          the coordinator's HOST:PORT, where --server is not given
  FSDPD_COORDINATOR_CA  as --coordinator-ca
  FSDPD_TOKEN_FILE      as --token-file
  FSDPD_CONTEXT         as --context
  FSDPD_CONFIG          the contexts file, in the place of ~/.config/fsdpd/contexts.yaml
  FSDPD_TOKEN           the token itself, where no file is named; it is sent over TLS only
  NO_COLOR              any value: no colors
  COLUMNS               width of the screen, where the terminal does not say)";

constexpr int kMaxProfiledRanks = 1024;  // Ranks are threads of one process, and measure in parallel.

// Checks all entries of a list, so that an invalid one is reported before the client calls another one.
std::string CheckServer(std::string& servers) {
  for (const absl::string_view entry : absl::StrSplit(servers, ',')) {
    const absl::string_view server = absl::StripAsciiWhitespace(entry);
    if (absl::StrContains(server, "://"))
      return absl::StrCat("'", server, "' is an URL; write HOST:PORT alone, as in 127.0.0.1:7777");
    const absl::StatusOr<HostPort> address = ParseHostPort(server);
    if (address.ok() && address->port > 0) continue;
    const bool one = server.size() == servers.size();
    return absl::StrCat("'", server, "' is not HOST:PORT", one ? "" : absl::StrCat(", in '", servers, "'"));
  }
  return "";
}

std::string CheckFrom(std::string& text) {
  const absl::StatusOr<CheckpointChoice> choice = ParseCheckpointChoice(text);
  return choice.ok() ? "" : absl::StrCat(std::string(choice.status().message()), "; write JOB or JOB@STEP");
}

std::string CheckArray(std::string& array) { return std::string(ArrayOverrides({array}).status().message()); }

std::string CheckProject(std::string& name) { return std::string(CheckProjectName(name).message()); }

void AddSpecFlags(CLI::App* command, CommandLine* line) {
  command->add_option("-f,--file", line->file, "The spec, YAML or JSON; - reads stdin")
      ->required()
      ->check(NotEmpty())
      ->type_name("FILE");
  command
      ->add_option("--set", line->sets, "Replace a value of the spec, as in train.steps=20; may be repeated")
      ->type_name("PATH=VALUE")
      ->allow_extra_args(false);
}

CLI::Option* AddSearchFlags(CLI::App* plan, CommandLine* line) {
  CLI::Option* search = plan->add_flag(
      "--search", line->search,
      "Try meshes, strategies, micro-batches and recompute with the same global batch, and show "
      "the five fastest that fit");
  plan->add_option("--hold", line->hold,
                   "With --search: leave a field as the spec has it, as in parallel.tensor or fsdp; may be "
                   "repeated")
      ->needs(search)
      ->type_name("PATH")
      ->allow_extra_args(false);
  plan->add_option("--write", line->write, "With --search: write the spec of the fastest way, for submit -f")
      ->needs(search)
      ->check(NotEmpty())
      ->type_name("FILE");
  return search;
}

void AddArrayFlag(CLI::App* submit, CLI::Option* follow, CommandLine* line) {
  submit
      ->add_option(
          "--array", line->arrays,
          "A job for each value, and for each combination where it is repeated: its name and checkpoint.dir "
          "end in its number, from 0")
      ->check(CLI::Validator(CheckArray, ""))
      ->type_name("PATH=VALUE,VALUE")
      ->allow_extra_args(false)
      ->excludes(follow);
}

void AddSubmitCommand(CLI::App* app, CommandLine* line) {
  CLI::App* submit =
      AddCommand(app, "submit",
                 "Submit a job. It is on the coordinator's disk when the command returns, and goes on "
                 "when fsdpctl ends.",
                 "  fsdpctl submit -f job.yaml\n"
                 "  fsdpctl submit -f job.yaml --follow --set train.steps=20\n"
                 "  fsdpctl submit -f job.yaml --from tiny-llama-k3x9q2@200\n"
                 "  fsdpctl submit -f job.yaml --after tiny-llama-k3x9q2\n"
                 "  fsdpctl submit -f job.yaml --array optimizer.adamw.lr=1e-4,3e-4\n"
                 "  cat job.yaml | fsdpctl submit -f - -o json");
  AddSpecFlags(submit, line);
  CLI::Option* follow = submit->add_flag("--follow", line->follow,
                                         "Watch the job until it has ended; its result is the exit code");
  submit
      ->add_option("--request-id", line->request_id,
                   "Makes a repeated submit safe: the same id gives the same job")
      ->check(NotEmpty());
  submit
      ->add_option("--from", line->from,
                   "Start from the newest checkpoint of a job, or the one of that step: sets checkpoint.load")
      ->check(CLI::Validator(CheckFrom, ""))
      ->type_name("JOB[@STEP]");
  submit
      ->add_option("--record", line->record, "With --follow: append each step's report to FILE as JSON lines")
      ->needs(follow)
      ->check(NotEmpty())
      ->type_name("FILE");
  submit
      ->add_option("--after", line->after,
                   "Start it once these jobs, at most 64, have succeeded; it waits in the queue until then")
      ->delimiter(',')
      ->check(NotEmpty())
      ->type_name("JOB[,JOB]")
      ->allow_extra_args(false);
  submit->add_flag(
      "--preemptible", line->preemptible,
      "It may be told to save and leave for a job of a higher priority, and goes on by itself when "
      "there is room; needs a checkpoint.dir");
  AddArrayFlag(submit, follow, line);
  submit->add_option("--project", line->project, "Whose quota it counts against; default: your token's")
      ->check(CLI::Validator(CheckProject, ""))
      ->type_name("PROJECT");
}

void AddSpecCommands(CLI::App* app, CommandLine* line) {
  AddSubmitCommand(app, line);
  CLI::App* validate =
      AddCommand(app, "validate", "Check a spec and report all its faults, without submitting it.",
                 "  fsdpctl validate -f job.yaml\n"
                 "  fsdpctl validate -f job.yaml --offline");
  AddSpecFlags(validate, line);
  validate->add_flag("--offline", line->offline, "Check here, without a coordinator");
  CLI::App* plan =
      AddCommand(app, "plan",
                 "Show what a spec would do: what `auto` becomes and why, memory per rank, the step's "
                 "program and how long it would take.",
                 "  fsdpctl plan -f job.yaml\n"
                 "  fsdpctl plan -f job.yaml --offline --program\n"
                 "  fsdpctl plan -f job.yaml --offline --profile h100 --picture step.svg\n"
                 "  fsdpctl plan -f job.yaml --search --write fastest.yaml");
  AddSpecFlags(plan, line);
  plan->add_flag("--offline", line->offline,
                 "Plan here, without a coordinator (no memory budget is known then, except a profile's)");
  CLI::Option* program = plan->add_flag("--program", line->program, "List every instruction of the step");
  plan->add_option("--profile", line->profile,
                   "The device to predict for: cpu, h100, h200, or a file; its memory is the budget too")
      ->check(NotEmpty())
      ->type_name("NAME|FILE");
  CLI::Option* trace =
      plan->add_option("--trace", line->trace, "Write the predicted step for Perfetto or chrome://tracing")
          ->check(NotEmpty())
          ->type_name("FILE");
  CLI::Option* picture = plan->add_option("--picture", line->picture,
                                          "Write the predicted step as SVG: lanes and memory over time")
                             ->check(NotEmpty())
                             ->type_name("FILE");
  AddSearchFlags(plan, line)->excludes(program)->excludes(trace)->excludes(picture);
}

void AddMigrateCommand(CLI::App* app, CommandLine* line) {
  CLI::App* migrate = AddCommand(
      app, "migrate",
      "Write the spec that does what a Megatron run does, from Megatron Bridge's run_config.yaml or the "
      "arguments of a Megatron-LM script. What is refused, changed or left behind is told on stderr.",
      "  fsdpctl migrate -f run_config.yaml > job.yaml\n"
      "  fsdpctl migrate -f pretrain.args --nodes 8 --name llama3-70b > job.yaml");
  migrate->add_option("-f,--file", line->file, "run_config.yaml, or arguments; - reads stdin")
      ->required()
      ->check(NotEmpty())
      ->type_name("FILE");
  migrate->add_option("--nodes", line->nodes, "Nodes of the job; default: torchrun's --nnodes, or 1")
      ->check(WholeNumber(1))
      ->type_name("N");
  migrate
      ->add_option("--ranks-per-node", line->ranks_per_node,
                   "GPUs of each node; default: torchrun's --nproc-per-node, or 8")
      ->check(WholeNumber(1))
      ->type_name("N");
  migrate->add_option("--name", line->name, "The job's name")->type_name("NAME");
}

void AddProfileCommand(CLI::App* app, CommandLine* line) {
  CLI::App* profile = AddCommand(app, "profile-device",
                                 "Measure this node's devices and links for a few seconds and print the "
                                 "profile (JSON; with -o yaml, YAML) "
                                 "that `plan --profile FILE` predicts from. Stop what else runs here first.",
                                 "  fsdpctl profile-device > my.json\n"
                                 "  fsdpctl profile-device --device cuda --ranks 8 > my.json\n"
                                 "  fsdpctl plan -f job.yaml --offline --profile my.json");
  profile->add_option("--device", line->device, "cpu or cuda")
      ->check(OneOf({"cpu", "cuda"}))
      ->capture_default_str()
      ->type_name("KIND");
  profile->add_option("--ranks", line->ranks, "Ranks at once; default: 2 on CPU, every device on CUDA")
      ->check(WholeNumber(1, kMaxProfiledRanks))
      ->type_name("N");
  profile->add_option("--rank-binary", line->rank_binary, "fsdpd-rank; default: the one beside fsdpctl")
      ->check(NotEmpty())
      ->type_name("PATH");
}

void AddCkptConvert(CLI::App* ckpt, CommandLine* line) {
  CLI::App* convert = AddCommand(
      ckpt, "convert",
      "Write a model's parameters in another format, and between native checkpoints and torch_dist the "
      "optimizer's state too. SOURCE is a native checkpoint, a Hugging Face directory, Megatron-Core's "
      "torch_dist, "
      "or what FSDP2 or torchtitan saved. TARGET appears when it is complete; after an interrupt, run the "
      "same "
      "again: it goes on with what is whole.",
      "  fsdpctl ckpt convert Llama-3.1-8B start --to fsdp_dtensor\n"
      "  fsdpctl ckpt convert runs/7/iter_0001000 out --to hf --spec job.yaml\n"
      "  fsdpctl ckpt convert runs/7/iter_0001000 out --to hf --config Llama-3.1-8B/config.json --dtype "
      "float32");
  convert->add_option("SOURCE", line->file, "The directory to read")
      ->required()
      ->check(NotEmpty())
      ->type_name("");
  convert->add_option("TARGET", line->target, "The directory to make; not there yet, or empty")
      ->required()
      ->check(NotEmpty())
      ->type_name("");
  convert
      ->add_option("--to", line->to,
                   "fsdp_dtensor (native), hf (safetensors and config.json) or torch_dist (Megatron-Core)")
      ->required()
      ->check(OneOf({"fsdp_dtensor", "hf", "torch_dist"}))
      ->type_name("FORMAT");
  convert
      ->add_option(
          "--config", line->config,
          "The model's config.json; default: the one in SOURCE. With --to hf its fields are written again")
      ->check(NotEmpty())
      ->type_name("FILE");
  convert
      ->add_option("--spec", line->spec,
                   "Instead: the spec of a job with the model; its optimizer's settings too, for torch_dist")
      ->check(NotEmpty())
      ->type_name("FILE");
  convert
      ->add_option("--dtype", line->dtype,
                   "bfloat16 (default with --to hf), float16 or float32 (default with --to torch_dist)")
      ->check(OneOf({"bfloat16", "float16", "float32"}))
      ->type_name("TYPE");
  convert->add_option("--shard-bytes", line->shard_bytes, "Of a file at most, unless one tensor is larger")
      ->type_name("SIZE")
      ->capture_default_str();
  convert->add_flag("--no-optimizer", line->no_optimizer, "The parameters alone");
  convert->add_flag(
      "--overwrite", line->overwrite,
      "Begin anew, whatever an interrupted one left in TARGET.part; a TARGET that is there stays");
}

void AddCkptCommand(CLI::App* app, CommandLine* line) {
  CLI::App* ckpt = AddCommand(
      app, "ckpt",
      "Look into checkpoints in PyTorch's distributed format, whoever wrote them, compare and convert them. "
      "Nothing that is pickled in one is ever run.",
      "  fsdpctl ckpt inspect runs/7/iter_0001000\n"
      "  fsdpctl ckpt verify runs/7/iter_0001000\n"
      "  fsdpctl ckpt diff runs/7/iter_0001000 runs/8/iter_0001000\n"
      "  fsdpctl ckpt convert Llama-3.1-8B start --to fsdp_dtensor");
  ckpt->require_subcommand(1);
  const auto add = [&](const char* name, const char* about) {
    CLI::App* command = AddCommand(ckpt, name, about, absl::StrCat("  fsdpctl ckpt ", name, " DIR\n"));
    command
        ->add_option("DIR", line->file, "The directory: with .metadata, or of safetensors; or of checkpoints")
        ->required()
        ->check(NotEmpty())
        ->type_name("");
  };
  add("inspect",
      "Show tensors, values and files, and what is wrong as far as .metadata and heads show it. Of a "
      "directory "
      "of "
      "checkpoints the newest.");
  add("verify",
      "Read all of it, compare it with its checksums, and tell every fault. Of a directory of checkpoints "
      "each, "
      "the newest first.");
  AddCkptConvert(ckpt, line);
  CLI::App* diff = AddCommand(
      ckpt, "diff",
      "Compare two checkpoints: names, shapes, types and numbers. In different formats, "
      "a Hugging Face directory and a native checkpoint for one, the parameters of the model that "
      "one of them, or a flag, says it is. The exit code is 0 where they are equal and 10 where not.",
      "  fsdpctl ckpt diff runs/7/iter_0001000 runs/8/iter_0001000\n"
      "  fsdpctl ckpt diff fsdp2/step-1000 megatron/iter_0001000 --config Llama-3.1-8B/config.json");
  diff->add_option("FIRST", line->file, "A directory")->required()->check(NotEmpty())->type_name("");
  diff->add_option("SECOND", line->target, "Another")->required()->check(NotEmpty())->type_name("");
  diff->add_option("--config", line->config, "The model's config.json, where neither says which model it is")
      ->check(NotEmpty())
      ->type_name("FILE");
  diff->add_option("--spec", line->spec, "Instead: the spec of a job with the model")
      ->check(NotEmpty())
      ->type_name("FILE");
}

void AddJobArgument(CLI::App* command, CommandLine* line) {
  command->add_option("JOB", line->job, "The job's id, or its beginning where no other's begins so")
      ->required()
      ->check(NotEmpty())
      ->type_name("");
}

void AddWatchCommands(CLI::App* app, CommandLine* line) {
  CLI::App* get = AddCommand(app, "get", "List jobs, newest first; or show the named ones.",
                             "  fsdpctl get\n"
                             "  fsdpctl get --state running,queued\n"
                             "  fsdpctl get tiny-llama-k3x9q2 -o yaml");
  get->add_option("JOB", line->jobs, "Ids of jobs; none: all")->check(NotEmpty())->type_name("");
  get->add_option("--state", line->states, "Only jobs in these states")
      ->delimiter(',')
      ->type_name("STATE")
      ->allow_extra_args(false)
      ->check(CLI::IsMember(StateNames(), CLI::ignore_case));
  CLI::Option* project = get->add_option("--project", line->project, "Only jobs of this project")
                             ->check(CLI::Validator(CheckProject, ""))
                             ->type_name("PROJECT");
  get->add_option("--array", line->array, "Only jobs of this array")->check(NotEmpty())->type_name("ARRAY");
  get->add_flag("--all-projects", line->all_projects,
                "Jobs of all projects; without it those of your token's, where it has one and is no admin's")
      ->excludes(project);
  AddGetFlags(get, line);
  CLI::App* describe =
      AddCommand(app, "describe",
                 "Show everything about a job: state and reason, placement, memory planned and "
                 "measured, events, and why it failed. With `node`, what a node was measured to be.",
                 "  fsdpctl describe tiny-llama-k3x9q2\n"
                 "  fsdpctl describe node node-7");
  AddJobArgument(describe, line);
  describe->add_option("NODE", line->node, "After `node`: its name")->check(NotEmpty())->type_name("");
  CLI::App* watch = AddCommand(app, "watch", "Follow a job until it has ended; its result is the exit code.",
                               "  fsdpctl watch tiny-llama-k3x9q2\n"
                               "  fsdpctl watch tiny-llama-k3x9q2 --record steps.jsonl");
  AddJobArgument(watch, line);
  watch->add_option("--record", line->record, "Append each step's report to FILE as JSON lines")
      ->check(NotEmpty())
      ->type_name("FILE");
}

std::string CheckPrincipal(std::string& name) { return std::string(CheckPrincipalName(name).message()); }

void AddTokenCommand(CLI::App* app, CommandLine* line) {
  CLI::App* token =
      AddCommand(app, "token", "Make the tokens by which a coordinator knows people.",
                 "  fsdpctl token new alice --role submitter --out alice.token >> /etc/fsdpd/tokens");
  token->require_subcommand(1);
  CLI::App* make =
      AddCommand(token, "new",
                 "Write a new token to a file for its owner, and print the line for the coordinator's "
                 "--tokens file, which "
                 "has only its hash.",
                 "  fsdpctl token new alice --role submitter --out alice.token >> /etc/fsdpd/tokens");
  make->add_option("NAME", line->principal, "Whose it is; the same name twice while one replaces another")
      ->required()
      ->check(CLI::Validator(CheckPrincipal, ""))
      ->type_name("");
  std::vector<std::string> roles;
  for (const PrincipalRole role : kPrincipalRoles) roles.push_back(NameOf(role));
  make->add_option("--role", line->role,
                   "viewer (sees jobs, nodes, logs), submitter (runs jobs and ends its own), operator (ends "
                   "anybody's, cordons nodes) or admin")
      ->required()
      ->check(OneOf(roles))
      ->type_name("ROLE");
  make->add_option("--project", line->project, "Whose quota the person's jobs count against; default: none's")
      ->check(CLI::Validator(CheckProject, ""))
      ->type_name("PROJECT");
  make->add_option("--out", line->out, "File for the token, made for its owner's eyes; not there yet")
      ->required()
      ->check(NotEmpty())
      ->type_name("FILE");
}

void AddOtherCommands(CLI::App* app, CommandLine* line) {
  CLI::App* logs = AddCommand(app, "logs", "Print what a job's ranks wrote to stdout and stderr.",
                              "  fsdpctl logs tiny-llama-k3x9q2 --tail 20\n"
                              "  fsdpctl logs -f tiny-llama-k3x9q2 --rank 0");
  AddJobArgument(logs, line);
  logs->add_flag("-f,--follow", line->follow, "Go on until the job has ended");
  logs->add_option("--rank", line->rank, "Only this rank")->check(WholeNumber(0))->type_name("N");
  CLI::Option* attempt = logs->add_option("--attempt", line->attempt, "Of this attempt; default: the newest")
                             ->check(WholeNumber(1))
                             ->type_name("N");
  logs->add_option("--tail", line->tail, "Only the last N lines of each rank, at most 100,000")
      ->check(WholeNumber(1, kMaxTailLines))
      ->type_name("N");
  AddLogFlags(logs, line);
  logs->get_option("--previous")->excludes(attempt);
  CLI::App* trace = AddCommand(
      app, "trace",
      "Have all ranks of a running job trace its next steps: what each lane ran when, by unit, with what it "
      "waited for and how full memory was. The job goes on. One file, which https://ui.perfetto.dev opens.",
      "  fsdpctl trace tiny-llama-k3x9q2\n"
      "  fsdpctl trace tiny-llama-k3x9q2 --steps 3 --out step.json\n"
      "  fsdpctl trace tiny-llama-k3x9q2 --memory\n"
      "  fsdpctl trace tiny-llama-k3x9q2 --written");
  AddJobArgument(trace, line);
  CLI::Option* steps = trace->add_option("--steps", line->steps, "How many")
                           ->check(WholeNumber(1, kMaxTracedSteps))
                           ->type_name("N")
                           ->capture_default_str();
  CLI::Option* written =
      trace->add_flag("--written", line->written, "Fetch what was written before, and trace nothing now")
          ->excludes(steps);
  trace
      ->add_flag("--memory", line->memory,
                 "Ranks also write what their memory holds after each step, and who allocated it, for "
                 "https://pytorch.org/memory_viz: a file beside each rank's log, whose place is printed")
      ->excludes(written);
  trace->add_option("--attempt", line->attempt, "With --written: of this attempt; default: the newest")
      ->needs(written)
      ->check(WholeNumber(1))
      ->type_name("N");
  trace->add_option("--rank", line->rank, "Fetch this rank's traces only")
      ->check(WholeNumber(0))
      ->type_name("N");
  trace->add_option("--out", line->out, "Where to write it; default: JOB.trace.json")
      ->check(NotEmpty())
      ->type_name("FILE");
  AddTokenCommand(app, line);
  AddCommand(app, "version", "Print the versions of fsdpctl and of the coordinator.", "  fsdpctl version");
}

void AddReason(CLI::App* command, CommandLine* line) {
  command->add_option("--reason", line->reason, "Kept in the job's events")->type_name("TEXT");
}

CLI::Option* AddJobsArgument(CLI::App* command, CommandLine* line) {
  return command->add_option("JOB", line->jobs, "Ids of jobs")->check(NotEmpty())->type_name("");
}

void AddLifeCommands(CLI::App* app, CommandLine* line) {
  CLI::App* cancel = AddCommand(
      app, "cancel", "End a job: its ranks save within the grace, where it has checkpoints, and leave.",
      "  fsdpctl cancel tiny-llama-k3x9q2 --reason \"wrong data\"\n"
      "  fsdpctl cancel --array sweep-4dfz2k\n"
      "  fsdpctl cancel tiny-llama-k3x9q2 --grace 60 --wait");
  CLI::Option* job = AddJobsArgument(cancel, line);
  cancel->add_option("--array", line->array, "All jobs of a `submit --array` that have not ended")
      ->check(NotEmpty())
      ->type_name("ARRAY")
      ->excludes(job);
  AddReason(cancel, line);
  cancel
      ->add_option("--grace", line->grace_seconds,
                   "Until SIGKILL; default 10, at most 3600. 0: at once, without saving")
      ->check(WholeNumber(0, kMaxGraceSeconds))
      ->type_name("SECONDS");
  cancel->add_flag("--wait", line->wait, "Return when the job has ended");
  CLI::App* pause =
      AddCommand(app, "pause",
                 "Checkpoint jobs, release their slots, and hold them until `resume`. Queued jobs are held.",
                 "  fsdpctl pause tiny-llama-k3x9q2 --wait\n"
                 "  fsdpctl pause tiny-llama-k3x9q2 --reason \"node-3 gets a new disk\"");
  AddJobsArgument(pause, line)->required();
  AddReason(pause, line);
  pause
      ->add_option(
          "--grace", line->grace_seconds,
          "Until SIGKILL of ranks that have not saved; default 600, at most 3600. 0: at once, and what "
          "came after the newest checkpoint is lost")
      ->check(WholeNumber(0, kMaxGraceSeconds))
      ->type_name("SECONDS");
  pause->add_flag(
      "--wait", line->wait,
      "Return when it is paused, with the step; the exit code is 7 where steps were lost, or a GPU's memory "
      "is not free");
  CLI::App* resume = AddCommand(app, "resume", "Have a paused job go on where it was paused.",
                                "  fsdpctl resume tiny-llama-k3x9q2");
  AddJobsArgument(resume, line);
  AddReason(resume, line);
  CLI::App* retry =
      AddCommand(app, "retry",
                 "Have a failed or cancelled job go on, as the same job: from its newest checkpoint "
                 "where it has one, with as many attempts as at first.",
                 "  fsdpctl retry tiny-llama-k3x9q2");
  AddJobsArgument(retry, line);
  AddReason(retry, line);
  CLI::App* remove = AddCommand(app, "delete", "Forget ended jobs and their logs. Checkpoints stay on disk.",
                                "  fsdpctl delete tiny-llama-k3x9q2 tiny-llama-x1y2z3");
  AddJobsArgument(remove, line)->required();
}

void AddGlobalFlags(CLI::App* app, CommandLine* line) {
  app->add_option("--server", line->server, "The coordinator")
      ->envname("FSDPD_SERVER")
      ->type_name("HOST:PORT")
      ->default_str(kDefaultServer)
      ->check(CLI::Validator(CheckServer, ""));
  app->add_option("--context", line->context, "A coordinator by its name in the contexts file")
      ->envname("FSDPD_CONTEXT")
      ->check(NotEmpty())
      ->type_name("NAME");
  app->add_option(
         "--coordinator-ca", line->coordinator_ca,
         "Authorities of the coordinator's certificate, in PEM; without it the connection is plaintext")
      ->envname("FSDPD_COORDINATOR_CA")
      ->check(NotEmpty())
      ->type_name("FILE");
  app->add_option("--token-file", line->token_file, "File with the token that says who you are")
      ->envname("FSDPD_TOKEN_FILE")
      ->check(NotEmpty())
      ->type_name("FILE");
  AddOutputFlag(app, line);
  app->add_option("--timeout", line->timeout_seconds,
                  "Time limit of calls; of plan --search: 40 s, with --offline none")
      ->check(CLI::Validator(CheckSeconds, ""))
      ->type_name("SECONDS")
      ->capture_default_str();
}

const char* PathVariable() {
  const char* path = std::getenv("PATH");
  return path == nullptr ? "" : path;
}

// "; did you mean X?" with the most likely command or flag for an unknown word; "" if none is similar.
std::string Suggestion(const CLI::App& app, const std::string& word) {
  const bool has_command = !app.get_subcommands().empty();
  std::vector<std::string> candidates = {"--help"};
  if (absl::string_view(word).substr(0, 1) == "-") {
    const auto collect = [&](const CLI::App& of) {
      for (const CLI::Option* option : of.get_options()) {
        for (const std::string& name : option->get_lnames()) candidates.push_back("--" + name);
      }
    };
    collect(app);
    for (const CLI::App* command : app.get_subcommands()) collect(*command);
  }
  if (!has_command) {
    for (const CLI::App* command : app.get_subcommands(nullptr)) candidates.push_back(command->get_name());
    // Suggests `version` for `--version`, and `--help` for `help`.
    const std::string bare(absl::StripPrefix(word, "--"));
    for (const std::string& each : candidates) {
      if (bare == absl::StripPrefix(each, "--")) return absl::StrCat("; did you mean ", each, "?");
    }
  } else if (word[0] != '-') {
    // A positional file name, for a command that takes it with -f.
    const CLI::App* command = app.get_subcommands().front();
    const CLI::Option* file = command->get_option_no_throw("--file");
    return file == nullptr ? "" : absl::StrCat("; did you mean -f ", word, "?");
  }
  if (!has_command && !PluginProgram(word, PathVariable()).empty())
    return absl::StrCat("; it is a program of its own: write `fsdpctl ", word, " ...`, flags after it");
  if (const std::string hint = InstallHint(word); !has_command && !hint.empty())
    return absl::StrCat("; it is installed apart (", hint, ")");
  const std::string nearest = SuggestCommand(word.substr(0, word.find('=')), candidates);
  return nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?");
}

int ExplainUsage(const CLI::App& app, const CLI::ParseError& error, Console* console) {
  std::vector<std::string> unknown = app.remaining(/*recurse=*/true);
  unknown.erase(std::remove(unknown.begin(), unknown.end(), "--"), unknown.end());
  const std::vector<const CLI::App*> chosen = app.get_subcommands([](const CLI::App*) { return true; });
  const bool has_command = !app.get_subcommands().empty();
  console->err << "fsdpctl: ";
  if (!unknown.empty()) {
    const char* kind = unknown.front()[0] == '-' ? "flag" : has_command ? "argument" : "command";
    console->err << "unknown " << kind << " '" << Escaped(unknown.front()) << "'"
                 << Escaped(Suggestion(app, unknown.front()));
  } else if (!has_command) {
    console->err << "no command; one of";
    for (const CLI::App* command : chosen) console->err << " " << command->get_name();
  } else {
    console->err << Escaped(error.what())  // "--filter excludes JOB", for one.
                 << (error.get_name() == "ExcludesError" ? "; leave one of the two out" : "");
  }
  std::string path;
  for (const CLI::App* at = &app; !at->get_subcommands().empty(); path += at->get_name() + " ")
    at = at->get_subcommands().front();
  console->err << "\nrun `fsdpctl " << path << "--help` for usage\n";
  return kExitUsage;
}

}  // namespace

std::vector<std::string> CommandNames() {
  CommandLine unused;
  const auto app = MakeApp("", "");
  BuildApp(app.get(), &unused);
  std::vector<std::string> names;
  for (const CLI::App* command : app->get_subcommands(nullptr)) names.push_back(command->get_name());
  return names;
}

void BuildApp(CLI::App* app, CommandLine* line) {
  app->footer(kFooter);
  app->require_subcommand(1);
  app->get_formatter()->column_width(34);
  AddGlobalFlags(app, line);
  AddSpecCommands(app, line);
  AddMigrateCommand(app, line);
  AddProfileCommand(app, line);
  AddCkptCommand(app, line);
  AddWatchCommands(app, line);
  AddVerbs(app, line);
  AddOtherCommands(app, line);
  AddNodeCommands(app, line);
  AddEventCommands(app, line);
  AddLifeCommands(app, line);
  AddLabelFlags(app, line);
  AddListFlags(app, line);
}

std::optional<int> ParseCommandLine(const std::vector<std::string>& arguments, CommandLine* line,
                                    Console* console) {
  const auto app = MakeApp(kAbout, "fsdpctl");
  BuildApp(app.get(), line);
  try {
    ParseWords(app.get(), arguments);
  } catch (const CLI::CallForHelp&) {
    if (app->get_subcommands().empty())
      app->footer(PluginHelp(PluginVerbs(CommandNames(), PathVariable())) + kFooter);
    console->out << app->help();
    return kExitOk;
  } catch (const CLI::ParseError& error) {
    return ExplainUsage(*app, error, console);
  }
  line->flags = AccessFlags(arguments);
  const CLI::App* command = app->get_subcommands().front();
  line->command = command->get_name();
  const std::string missing = MissingJobError(*line);
  if (const std::string fault = missing.empty() ? OutputFlagError(*line) : missing; !fault.empty()) {
    console->err << "fsdpctl: " << fault << "\n";
    return kExitUsage;
  }
  if (!command->get_subcommands().empty()) line->action = command->get_subcommands().front()->get_name();
  return std::nullopt;
}

}  // namespace fsdpd
