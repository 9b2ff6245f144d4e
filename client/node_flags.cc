#include "client/node_flags.h"

#include <CLI/CLI.hpp>

#include "base/call_limits.h"
#include "client/flag_checks.h"

namespace fsdpd {
namespace {

void AddNodeArgument(CLI::App* command, CommandLine* line) {
  command->add_option("NODE", line->node, "Name of the node")->required()->check(NotEmpty())->type_name("");
}

void AddCordon(CLI::App* app, CommandLine* line) {
  CLI::App* cordon =
      AddCommand(app, "cordon",
                 "Place no job on these nodes until `uncordon`. Jobs there continue; restarts of the "
                 "coordinator or of an agent change nothing.",
                 "  fsdpctl cordon node-7 --reason \"a fan is broken\"\n"
                 "  fsdpctl cordon node-7 node-8");
  CLI::App* uncordon =
      AddCommand(app, "uncordon", "Place jobs on these nodes again.", "  fsdpctl uncordon node-7 node-8");
  for (CLI::App* command : {cordon, uncordon})
    command->add_option("NODE", line->node_names, "Names of nodes")
        ->required()
        ->check(NotEmpty())
        ->type_name("");
  cordon->add_option("--reason", line->reason, "Shown with the node, and to jobs that wait for it")
      ->type_name("TEXT");
}

void AddDrain(CLI::App* app, CommandLine* line) {
  CLI::App* drain = AddCommand(app, "drain",
                               "Empty a node: no job is placed there, and those that are there save, leave "
                               "and go on elsewhere, without "
                               "an attempt that counts. `uncordon` opens it again.",
                               "  fsdpctl drain node-7 --reason \"gets a new disk\" --wait\n"
                               "  fsdpctl drain node-7 --force");
  AddNodeArgument(drain, line);
  drain->add_option("--reason", line->reason, "Shown with the node, and to jobs that wait for it")
      ->type_name("TEXT");
  drain
      ->add_option("--grace", line->grace_seconds,
                   "Until SIGKILL of ranks that have not saved; default 600, at most 3600")
      ->check(WholeNumber(1, kMaxGraceSeconds))
      ->type_name("SECONDS");
  drain->add_flag("--force", line->force, "Jobs that write no checkpoints leave too, and begin anew");
  CLI::Option* wait = drain->add_flag("--wait", line->wait, "Return when nothing of any job is left there");
  drain
      ->add_option("--timeout", line->wait_timeout_seconds,
                   "With --wait: for how long at most; default: for ever")
      ->needs(wait)
      ->check(CLI::Validator(CheckWaitSeconds, ""))
      ->type_name("SECONDS");
}

void AddNode(CLI::App* app, CommandLine* line) {
  CLI::App* node = AddCommand(app, "node", "Remove a node whose agent is not coming back.",
                              "  fsdpctl node delete node-7\n"
                              "  fsdpctl node delete node-7 --force");
  node->require_subcommand(1);
  CLI::App* remove = AddCommand(
      node, "delete",
      "Delete a node that is lost or has left, with its cordon and preflight result. An agent of that name "
      "may register again.",
      "  fsdpctl node delete node-7\n"
      "  fsdpctl node delete node-7 --force");
  AddNodeArgument(remove, line);
  remove->add_flag("--force", line->force, "Delete it although ranks on the lost node may still run");
}

}  // namespace

void AddNodeCommands(CLI::App* app, CommandLine* line) {
  AddCommand(app, "nodes", "List the agents and their free slots, and why nodes are cordoned.",
             "  fsdpctl nodes\n  fsdpctl nodes -o json");
  AddCordon(app, line);
  CLI::App* preflight =
      AddCommand(app, "preflight",
                 "Measure an idle node's devices now, and show what came of it. One that is slower than it "
                 "should be is cordoned.",
                 "  fsdpctl preflight node-7");
  AddNodeArgument(preflight, line);
  AddDrain(app, line);
  AddNode(app, line);
}

}  // namespace fsdpd
