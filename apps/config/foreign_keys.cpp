#include "apps/config/foreign_keys.h"

#include "core/config/source.h"

namespace ottava {

using config::Field;
using config::Section;
using config::Type;
using config::Value;

const char* const kForeignKeys = R"(
reasons:
- why: "name the file on the command line: ottava train FILE"
  refused: {job: {config_file: "?text"}}
- why: no Python module can be loaded; every key is in `ottava config --schema`
  refused: {job: {custom_config_module: ""}}
- why: no test list is made from configurations
  noted: {job: {use_for_integration_test: false}}
- why: the start-up report says what runs in which precision
  noted: {model: {print_after_conversion: false}}
- why: it named a file; give the folder that holds tokenizer.json as model.hf_assets_path
  refused: {model: {tokenizer_path: "?text"}}
- why: parameters and optimizer state stay on the device; more shards, activation checkpointing or
    optimizer.state_dtype bfloat16 save memory
  refused: {training: {enable_cpu_offload: false}}
- why: nothing is garbage collected
  noted: {training: {gc_freq: 50, gc_debug: false}}
- why: workers are threads of this process and live as long as the run
  noted: {training: {dataloader: {persistent_workers: false}}, validation: {dataloader: {persistent_workers: false}}}
- why: host buffers of a GPU run are always pinned
  noted: {training: {dataloader: {pin_memory: false}}, validation: {dataloader: {pin_memory: false}}}
- why: there is one implementation, and it is fused
  noted: {optimizer: {implementation: fused|foreach|for-loop}}
- why: the step runs after clipping, when all gradients are known
  refused: {optimizer: {early_step_in_backward: false}}
- why: backward is written by hand; nothing is compiled at run time
  noted: {parallelism: {enable_compiled_autograd: false}}
- why: "name where stages begin: parallelism.pipeline_parallel_split_points"
  refused: {parallelism: {module_fqns_per_model_part: "?texts"}}
- why: no schedule is read from a file; parallelism.pipeline_parallel_schedule names those that there are
  refused: {parallelism: {pipeline_parallel_schedule_csv: ""}}
- why: "the models here are dense: there are no experts to overlap with"
  noted: {parallelism: {pipeline_parallel_expert_parallel_overlap: true}}
- why: sequences are dealt head-tail, the even share under a causal mask; "ptrr" balances masks of Flex attention
  refused: {parallelism: {context_parallel_load_balancer: headtail}}
- why: keys and values are gathered, a group of heads at a time while the one before is used; nothing rotates
  noted: {parallelism: {context_parallel_rotate_method: allgather|alltoall}}
- why: "the models here are dense: there are no experts"
  refused: {parallelism: {expert_parallel_degree: 1, expert_tensor_parallel_degree: 1}}
  noted: {parallelism: {expert_parallel_comm_backend: standard|deepep}, debug: {moe_force_load_balance: false}}
- why: the kind of folder is detected
  noted: {checkpoint: {initial_load_in_hf: false}}
- why: quantized weights cannot be trained on; load an f32, bf16 or f16 folder
  refused: {checkpoint: {initial_load_in_hf_quantized: false}}
- why: every checkpoint is a Hugging Face folder
  noted: {checkpoint: {last_save_in_hf: false}}
- why: initial weights are the same for every layout without one
  noted: {checkpoint: {create_seed_checkpoint: false}}
- why: the data position is one number in every checkpoint
  noted: {checkpoint: {enable_ft_dataloader_checkpoints: true}}
- why: what an operation saves is fixed by its layer
  noted: {activation_checkpoint: {per_op_sac_force_recompute_mm_shapes_by_fqns: [moe.router.gate]}}
- why: only what backward needs is recomputed
  noted: {activation_checkpoint: {early_stop: false}}
- why: only mode memory_budget reads it
  noted: {activation_checkpoint: {memory_budget: 0.5, visualize_memory_budget_pareto: false}}
- why: random numbers are counted, not drawn from a state
  noted: {activation_checkpoint: {preserve_rng_state: true}}
- why: recomputation repeats bitwise, by test
  noted: {activation_checkpoint: {determinism_check: default}}
- why: the memory plan lists what is kept
  noted: {activation_checkpoint: {debug: false}}
- why: scales of whole weights are always made once per optimizer step, for all weights together
  noted: {quantize: {linear: {float8: {precompute_float8_dynamic_scale_for_fsdp: false}}}}
- why: weights are quantized once per optimizer step, or after every gather; keep_weight_codes says which
  noted: {quantize: {linear: {float8: {force_recompute_fp8_weight_in_bwd: false}}}}
- why: MX runs as quantize.linear.float8.recipe_name mxfp8
  noted:
    quantize:
      linear:
        mx: {mxfp8_dim1_cast_kernel_choice: triton|cuda|torch, recipe_name: mxfp8_cublas, filter_fqns: [output]}
- why: "the models here are dense: there are no grouped multiplications"
  refused: {quantize: {grouped_mm: {float8: {fqns: []}, mx: {fqns: []}}}}
  noted: {quantize: {grouped_mm: {mx: {recipe_name: mxfp8}}}}
- why: Weights & Biases is not supported; metrics.jsonl and TensorBoard events can be imported there
  refused: {metrics: {enable_wandb: false}}
- why: memory is planned before step 1, and the plan is printed
  noted: {profiling: {enable_memory_snapshot: false, save_memory_snapshot_folder: memory_snapshot}}
- why: what cannot repeat is refused or not used
  noted: {debug: {deterministic_warn_only: false}}
- why: kernels are compiled with the program
  noted: {compile: {enable: false, components: [model, loss], backend: inductor}}
- why: "`ottava plan CONFIG --world-size N` gives the exact plan without training"
  refused: {memory_estimation: {enable: false}}
- why: "`ottava plan` allocates nothing"
  noted: {memory_estimation: {disable_fake_mode: false}}
- why: replica groups are not supported; a failed run resumes from its checkpoint
  refused: {fault_tolerance: {enable: false, semi_sync_method: "?text"}}
  noted:
    fault_tolerance: {process_group: gloo, process_group_timeout_ms: 10000, replica_id: 0, group_size: 0, min_replica_size: 1,
      sync_steps: 5, should_quantize: false, fragment_sync_delay: 0, fragment_update_alpha: 0.0}
- why: no Python module can be loaded
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
  if (fallback.text == "?integer") return s.foreign(name, Type::integer);
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
