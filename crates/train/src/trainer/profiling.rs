//! What a profile needs besides the loop.

use everburn_profile::machine;

use super::Trainer;
use crate::elastic::common_clock::compare_clocks;
use crate::error::TrainError;

impl Trainer {
    /// Lets the recorder know what this rank is, how fast it can compute, and how far its clock is from rank 0's. Every
    /// rank calls it.
    pub(super) fn begin_profile(&self) -> Result<(), TrainError> {
        let Some(recorder) = &self.recorder else {
            return Ok(());
        };
        let prefetch = self.prefetch();
        let is_asynchronous = self.device.memory_pool_usage().is_some();
        let peak = self.peak(is_asynchronous)?;
        everburn_nn::count_operations(true);
        recorder.count_operations(everburn_nn::operations_counted);
        if let Some(timer) = everburn_distributed::kernel_timer(&self.device) {
            recorder.time_kernels(timer);
        }
        recorder.know(|facts| {
            facts.rank = self.group.rank();
            facts.world_size = self.group.world_size();
            facts.machine = machine();
            facts.is_asynchronous = is_asynchronous;
            facts.peak_operations = peak;
            facts.workers = prefetch.workers;
            facts.prefetch = prefetch.depth;
            facts.batch_size = self.config.batch_size;
            facts.model.clone_from(&self.model_name);
        });
        compare_clocks(&self.group, recorder)?;
        Ok(())
    }

    /// How many operations per second this rank's processor computes at most, while all ranks try. Of other devices than
    /// processors it is not known.
    fn peak(&self, is_asynchronous: bool) -> Result<Option<f64>, TrainError> {
        // Ranks of one machine share its cores: what one could have alone is more than it can have in a step.
        self.group.barrier().wait()?;
        if is_asynchronous {
            return Ok(None);
        }
        let peak = everburn_nn::peak_operations();
        Ok((peak > 0.0).then_some(peak))
    }
}
