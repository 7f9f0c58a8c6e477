//! `everburn bottleneck`, and what `train --profile` records.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use everburn_launch::RankEnvironment;
use everburn_profile::{
    Analysis, CountingAllocator, FOLDER, Facts, ProfileError, Recorder, Results, Sampler, Summary,
    write_results,
};
use everburn_record::plain::word;
use everburn_record::units::counted;
use everburn_record::{Environment, Settings, invocation, is_run, units};
use everburn_train::RunDirectory;

use crate::arguments::TrainArguments;
use crate::arguments::keys::with_flags;
use crate::config::RunConfig;
use crate::error::CliError;
use crate::logging::LogOutput;
use crate::{devices, train};

#[derive(Debug, Clone, Args)]
pub(crate) struct BottleneckArguments {
    /// Analyse the recording of `train --profile` in this run, without training. Repeat the flag for the folders of
    /// other machines.
    #[arg(long, value_name = "RUN", conflicts_with_all = ["model", "config", "run_dir"])]
    pub(crate) of: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) train: TrainArguments,
}

/// Trains with a profile and says where the time went.
pub(crate) fn run(arguments: &BottleneckArguments, log: &LogOutput) -> Result<ExitCode, CliError> {
    if let [run, elsewhere @ ..] = arguments.of.as_slice() {
        print(run, &results(run, elsewhere)?);
        return Ok(ExitCode::SUCCESS);
    }
    let mut training = arguments.train.clone();
    training.profile = true;
    // What is said at the end would be lost below a dashboard's last picture.
    training.ranks.no_dashboard = true;
    if training.list || training.plan || training.kernels.warmup {
        return Err(CliError::usage_with_help(
            "`bottleneck` looks at a training, and --list, --plan and --warmup train nothing",
            "leave them out, or use `train`",
        ));
    }
    let config = RunConfig::resolve(&training, None).map_err(with_form_of_run)?;
    let claimed = match &training.run_dir {
        Some(_) => None,
        None => Some(train::claim_first_free(&config.model)?),
    };
    if claimed.is_some() {
        training.run_dir.clone_from(&claimed);
    }
    let trained = train::run(&training, None, log);
    if let (Some(claimed), Err(_)) = (&claimed, &trained) {
        // Removes it only where nothing has been written into it.
        let _ = std::fs::remove_dir(claimed);
    }
    let code = trained?;
    let run = training.run_dir.unwrap_or_default();
    if code != ExitCode::SUCCESS && !run.join(FOLDER).exists() {
        return Ok(code);
    }
    print(&run, &results(&run, &[])?);
    Ok(code)
}

/// The error of a model that there is not, with how a run is named: that may be what was meant.
fn with_form_of_run(error: CliError) -> CliError {
    let CliError::UnknownModel { name, hint } = error else {
        return error;
    };
    let program = invocation::name();
    let run = Path::new(&name);
    let hint = match is_run(run) {
        true => {
            let analysed = match run.join(FOLDER).is_dir() {
                true => format!(
                    "`{program} bottleneck --of {}` analyses what `train --profile` has recorded there",
                    word(run)
                ),
                false => with_profile(run),
            };
            format!(
                "{name} is the folder of a run: {analysed}, and `{program} monitor {}` shows what a run waits for that hangs. ",
                word(run)
            )
        }
        false => format!(
            "{hint}`{program} bottleneck MODEL` trains and analyses a model, and `{program} bottleneck --of RUN` what `train \
             --profile` has recorded in the folder of a run. "
        ),
    };
    CliError::UnknownModel { name, hint }
}

/// How a run that was made without a profile is analysed.
fn with_profile(run: &Path) -> String {
    format!(
        "it was made without a profile; `{} bottleneck --config {} --steps 50` makes 50 steps of the same training in a folder \
         of their own, and analyses them",
        invocation::name(),
        word(run.join(Settings::FILE))
    )
}

fn results(run: &Path, elsewhere: &[PathBuf]) -> Result<Results, CliError> {
    write_results(run, elsewhere).map_err(|error| {
        let run = match &error {
            ProfileError::NoRecordings { folder } => folder.parent(),
            _ => None,
        };
        match run.filter(|run| is_run(run)) {
            Some(run) => CliError::usage_with_help(error.to_string(), with_profile(run)),
            None => error.into(),
        }
    })
}

fn print(run: &Path, results: &Results) {
    let analysis = &results.analysis;
    say!("\nbottleneck of {}\n", run.display());
    for line in environment(run, analysis) {
        say!("  {line}");
    }
    say!("\n{}", with_flags(&Summary(analysis).to_string()));
    say!("findings, the largest gain first");
    for (number, finding) in results.findings.iter().enumerate() {
        let finding = with_flags(&finding.to_string());
        say!("{:>3}. {finding}", number + 1);
    }
    if results.findings.is_empty() {
        say!("  none that would save 3 % of a step");
    }
    say!(
        "\n  {}: all ranks on one clock, for https://ui.perfetto.dev",
        results.trace.display()
    );
    if let Some(flame) = &results.flame_graph {
        say!("  {}: what the CPU did, for any browser", flame.display());
    }
    say!("  {}: all numbers", results.numbers.display());
}

/// Where the run was made, and how.
fn environment(run: &Path, analysis: &Analysis) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(known) = Environment::of_run(run) {
        let memory = known
            .memory_bytes
            .map(|bytes| format!("{} of memory", units::bytes(bytes)));
        let cores = known.cores.map(|cores| counted(cores, "core"));
        let machine = [
            known.host,
            known.processor,
            cores,
            memory,
            known.system,
            known.kernel,
        ];
        lines.push(machine.into_iter().flatten().collect::<Vec<_>>().join(", "));
        lines.extend((!known.accelerators.is_empty()).then(|| known.accelerators.join(", ")));
        let versions = known
            .versions
            .iter()
            .map(|(name, version)| format!("{name} {version}"));
        lines.push(versions.collect::<Vec<_>>().join(", "));
        let variables = known
            .variables
            .iter()
            .map(|(name, value)| format!("{name}={value}"));
        let variables = variables.collect::<Vec<_>>().join(" ");
        lines.extend((!variables.is_empty()).then_some(variables));
        lines.extend(known.command);
    }
    let facts = &analysis.ranks[0].facts;
    lines.push(format!(
        "{} on {}, each on {} with {}; a batch of {} over all ranks, {} of --workers",
        facts.model,
        counted(facts.world_size, "rank"),
        facts.device,
        counted(facts.threads, "thread"),
        facts.batch_size,
        counted(facts.workers, "thread")
    ));
    lines
}

/// The recorder of this process's rank, if it is to have one.
pub(crate) fn recorder(
    config: &RunConfig,
    arguments: &TrainArguments,
    environment: Option<&RankEnvironment>,
) -> Result<Option<Recorder>, CliError> {
    if !arguments.profile {
        return Ok(None);
    }
    if let Some(environment) = environment
        && environment.rank > 0
        && arguments.run_dir.is_none()
    {
        return Err(CliError::usage_with_help(
            format!("rank {} has no folder for its recording", environment.rank),
            "give all ranks the same --run-dir",
        ));
    }
    let names = &config.ranks.devices;
    let local_rank = environment.map_or(0, |environment| environment.local_rank);
    let recorder = Recorder::new(Facts {
        host: everburn_record::proc::host_name(),
        device: devices::name_of_rank(names, local_rank).to_owned(),
        threads: rayon::current_num_threads(),
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        ..Facts::default()
    });
    CountingAllocator::count(true);
    Ok(Some(match Sampler::start() {
        Ok(sampler) => recorder.sampling(sampler),
        Err(error) => {
            tracing::warn!("the profile is without samples of the CPU: {error}");
            recorder
        }
    }))
}

/// Writes what a rank has recorded into the folder of its run.
pub(crate) fn write(
    recorder: Option<&Recorder>,
    run: Option<&RunDirectory>,
    arguments: &TrainArguments,
) -> Result<(), CliError> {
    let Some(recorder) = recorder else {
        return Ok(());
    };
    CountingAllocator::count(false);
    everburn_nn::count_operations(false);
    let folder = run.map(RunDirectory::path).or(arguments.run_dir.as_deref());
    if let Some(folder) = folder {
        recorder.finish().write(&folder.join(FOLDER))?;
    }
    Ok(())
}

impl From<ProfileError> for CliError {
    fn from(error: ProfileError) -> Self {
        Self::usage(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use miette::Diagnostic;

    use super::*;

    #[test]
    fn a_word_that_is_no_model_leads_to_the_flag_for_a_run() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("my run");
        std::fs::create_dir(&run).unwrap();
        let help = |name: &str| {
            let (name, hint) = (name.to_owned(), String::new());
            let error = with_form_of_run(CliError::UnknownModel { name, hint });
            error.help().unwrap().to_string()
        };
        let unknown = help("h");
        assert!(unknown.contains("bottleneck MODEL` trains"), "{unknown}");
        assert!(unknown.contains("bottleneck --of RUN` what"), "{unknown}");
        std::fs::write(run.join("config.toml"), "").unwrap();
        let shown = run.display().to_string();
        let profiled = format!("bottleneck --config '{shown}/config.toml' --steps 50` makes");
        assert!(help(&shown).contains(&profiled), "{}", help(&shown));
        assert!(
            !help(&shown).contains("bottleneck --of '"),
            "{}",
            help(&shown)
        );
        let error = results(&run, &[]).unwrap_err();
        let none = "there are no recordings of ranks in";
        assert!(error.to_string().contains(none), "{error}");
        assert!(error.help().unwrap().to_string().contains(&profiled));
        std::fs::create_dir(run.join(FOLDER)).unwrap();
        let of_run = help(&shown);
        let command = format!("bottleneck --of '{shown}'` analyses");
        assert!(of_run.contains(&command), "{of_run}");
        let hang = format!("monitor '{shown}'` shows what a run waits for");
        assert!(of_run.contains(&hang), "{of_run}");
    }
}
