#include "apps/config/foreign_keys.h"

#include "core/config/source.h"

namespace ottava {

using config::Field;
using config::Section;
using config::Type;
using config::Value;

const char* const kForeignKeys = R"(
reasons:
- why: "give the file on the command line: ottava train FILE"
  refused: {job: {config_file: "?text"}}
- why: Python modules cannot be loaded; `ottava config --schema` has every key
  refused: {job: {custom_config_module: ""}}
- why: it serves TorchTitan's own tests
  noted: {job: {use_for_integration_test: false}}
- why: the startup report always says how many layers run in which precision, and `ottava plan` which
  noted: {model: {print_after_conversion: false}}
- why: set model.hf_assets_path to the folder that holds tokenizer.json
  refused: {model: {tokenizer_path: "?text"}}
- why: parameters and optimizer state stay on the device; to save memory, use more shards, activation checkpointing
    or optimizer.state_dtype bfloat16
  refused: {training: {enable_cpu_offload: false}}
- why: there is no garbage collector
  noted: {training: {gc_freq: 50, gc_debug: false}}
- why: workers are threads that always live as long as the run
  noted: {training: {dataloader: {persistent_workers: false}}, validation: {dataloader: {persistent_workers: false}}}
- why: host buffers of a GPU run are always pinned
  noted: {training: {dataloader: {pin_memory: false}}, validation: {dataloader: {pin_memory: false}}}
- why: the only implementation is fused
  noted: {optimizer: {implementation: fused|foreach|for-loop}}
- why: the optimizer step runs after clipping, which needs all gradients
  refused: {optimizer: {early_step_in_backward: false}}
- why: the backward pass is built in; nothing is compiled at run time
  noted: {parallelism: {enable_compiled_autograd: false}}
- why: use parallelism.pipeline_parallel_split_points to say where stages begin
  refused: {parallelism: {module_fqns_per_model_part: "?texts"}}
- why: no schedule is read from a file; choose one with parallelism.pipeline_parallel_schedule
  refused: {parallelism: {pipeline_parallel_schedule_csv: ""}}
- why: the models are dense and have no experts
  noted: {parallelism: {pipeline_parallel_expert_parallel_overlap: true}}
- why: sequences are divided head-tail, which balances a causal mask; "ptrr" balances the masks of FlexAttention
  refused: {parallelism: {context_parallel_load_balancer: headtail}}
- why: keys and values are always gathered, one group of heads while the previous group is used
  noted: {parallelism: {context_parallel_rotate_method: allgather|alltoall}}
- why: the models are dense and have no experts
  refused: {parallelism: {expert_parallel_degree: 1, expert_tensor_parallel_degree: 1}}
  noted: {parallelism: {expert_parallel_comm_backend: standard|deepep}, debug: {moe_force_load_balance: false}}
- why: the kind of folder is detected automatically
  noted: {checkpoint: {initial_load_in_hf: false}}
- why: training cannot start from quantized weights; give a folder with float32, bfloat16 or float16 weights
  refused: {checkpoint: {initial_load_in_hf_quantized: false}}
- why: every checkpoint is a Hugging Face folder anyway
  noted: {checkpoint: {last_save_in_hf: false}}
- why: initial weights are the same for every parallel layout without one
  noted: {checkpoint: {create_seed_checkpoint: false}}
- why: every checkpoint contains the position in the data
  noted: {checkpoint: {enable_ft_dataloader_checkpoints: true}}
- why: each layer decides which of its products are recomputed
  noted: {activation_checkpoint: {per_op_sac_force_recompute_mm_shapes_by_fqns: [moe.router.gate]}}
- why: only what the backward pass needs is recomputed
  noted: {activation_checkpoint: {early_stop: false}}
- why: it belongs to mode memory_budget, which is not supported
  noted: {activation_checkpoint: {memory_budget: 0.5, visualize_memory_budget_pareto: false}}
- why: random numbers depend on counters, so there is no state to preserve
  noted: {activation_checkpoint: {preserve_rng_state: true}}
- why: recomputation is always bitwise deterministic
  noted: {activation_checkpoint: {determinism_check: default}}
- why: the startup report says what is recomputed
  noted: {activation_checkpoint: {debug: false}}
- why: the scales of all weights are always computed together, once per optimizer step
  noted: {quantize: {linear: {float8: {precompute_float8_dynamic_scale_for_fsdp: false}}}}
- why: use quantize.linear.float8.keep_weight_codes to choose when weights are quantized
  noted: {quantize: {linear: {float8: {force_recompute_fp8_weight_in_bwd: false}}}}
- why: use quantize.linear.float8 with recipe_name mxfp8 for MX formats
  noted:
    quantize:
      linear:
        mx: {mxfp8_dim1_cast_kernel_choice: triton|cuda|torch, recipe_name: mxfp8_cublas, filter_fqns: [output]}
- why: the models are dense and have no grouped matrix products
  refused: {quantize: {grouped_mm: {float8: {fqns: []}, mx: {fqns: []}}}}
  noted: {quantize: {grouped_mm: {mx: {recipe_name: mxfp8}}}}
- why: there is no logging to Weights & Biases; import metrics.jsonl or the TensorBoard events there
  refused: {metrics: {enable_wandb: false}}
- why: memory is planned before step 1, and the log shows the plan
  noted: {profiling: {enable_memory_snapshot: false, save_memory_snapshot_folder: memory_snapshot}}
- why: operations that are not deterministic are never used silently
  noted: {debug: {deterministic_warn_only: false}}
- why: all kernels are compiled in advance
  noted: {compile: {enable: false, components: [model, loss], backend: inductor}}
- why: run `ottava plan CONFIG --world-size N` instead, which plans memory exactly without training
  refused: {memory_estimation: {enable: false}}
- why: run `ottava plan` instead, which allocates nothing
  noted: {memory_estimation: {disable_fake_mode: false}}
- why: there are no replica groups; a failed run resumes from its newest checkpoint
  refused: {fault_tolerance: {enable: false, semi_sync_method: "?text"}}
  noted:
    fault_tolerance: {process_group: gloo, process_group_timeout_ms: 10000, replica_id: 0, group_size: 0, min_replica_size: 1,
      sync_steps: 5, should_quantize: false, fragment_sync_delay: 0, fragment_update_alpha: 0.0}
- why: Python modules cannot be loaded
  refused: {experimental: {custom_import: "", custom_args_module: ""}}
meanings:
  compile: compilers of other trainers
  memory_estimation: estimates of other trainers
  fault_tolerance: replica groups of other trainers
  experimental: Python modules of other trainers
)";

namespace {

Section& section_of(Section& parent, const std::string& name) {
  Section* found = parent.find_section(name);
  return found ? *found : parent.section(name);
}

Field& declare_key(Section& s, const std::string& name, Value fallback) {
  if (fallback.text == "?text") return s.foreign(name, Type::text);
  if (fallback.text == "?texts") return s.foreign(name, Type::text_list);
  std::vector<std::string> choices;
  for (size_t bar; (bar = fallback.text.find('|')) != std::string::npos; fallback.text.erase(0, bar + 1))
    choices.push_back(fallback.text.substr(0, bar));
  if (!choices.empty()) {
    choices.push_back(fallback.text);
    fallback = Value::of(choices.front());
  }
  return s.foreign(name, std::move(fallback)).one_of(std::move(choices));
}

void declare_tree(Section& s, const Value& tree, const std::function<void(Field&)>& judge) {
  for (const config::Member& member : tree.members) {
    if (member.value.kind == Value::Kind::table) {
      declare_tree(section_of(s, member.key), member.value, judge);
    } else {
      judge(declare_key(s, member.key, member.value));
    }
  }
}

}  // namespace

void declare_foreign_keys(Section& root) {
  static const Value table = config::parse_yaml(kForeignKeys, "foreign keys");
  for (const Value& reason : table.find("reasons")->items) {
    const std::string& why = reason.find("why")->text;
    if (const Value* keys = reason.find("noted"))
      declare_tree(root, *keys, [&](Field& key) { key.noted(why); });
    if (const Value* keys = reason.find("refused"))
      declare_tree(root, *keys, [&](Field& key) { key.refused(why); });
  }
  for (const config::Member& section : table.find("meanings")->members)
    section_of(root, section.key).meaning(section.value.text);
  Section& quantize = section_of(root, "quantize");
  section_of(section_of(quantize, "linear"), "mx").meaning("MX formats of other trainers");
  section_of(quantize, "grouped_mm").meaning("quantized experts of other trainers");
  root.renamed("float8", "quantize.linear.float8");
  root.renamed("mx", "quantize.linear.mx");
}

}  // namespace ottava
