"""What can be asked of a trace in a notebook? A method for each built-in analysis, with its thresholds as keywords.

Written out, so that an editor and IPython complete them and say what they are by default; a test holds them to the
analyses. `tracekit explain NAME`, or `analysis_help(NAME)`, says what each threshold means.
"""

from __future__ import annotations

from abc import abstractmethod

from tracekit.analysis import Result, Scalar
from tracekit.views import Views


class Questions(Views):
    """Analyses by name: each is asked once for the same thresholds, and its result kept."""

    @abstractmethod
    def analyze(self, name: str, **parameters: Scalar) -> Result:
        """Run one analysis."""

    def attribution(
        self,
        *,
        other_share: float = 0.1,
        pointwise_share: float = 0.4,
        memory_share: float = 0.3,
        missing_share: float = 0.02,
    ) -> Result:
        """Where does the busy time go? By phase and category; on a trace without device work, the time of host ops."""
        return self.analyze(
            "attribution",
            other_share=other_share,
            pointwise_share=pointwise_share,
            memory_share=memory_share,
            missing_share=missing_share,
        )

    def communication(
        self,
        *,
        max_skew_ns: int = 20_000,
        exposed_share: float = 0.1,
        critical_share: float = 0.3,
        finding_share: float = 0.05,
        last_share: float = 0.6,
        small_bytes: int = 1_048_576,
        latency_share: float = 0.25,
        bandwidth_share: float = 0.5,
    ) -> Result:
        """What does communication between devices cost, and why? Of all ranks together, where all were converted."""
        return self.analyze(
            "communication",
            max_skew_ns=max_skew_ns,
            exposed_share=exposed_share,
            critical_share=critical_share,
            finding_share=finding_share,
            last_share=last_share,
            small_bytes=small_bytes,
            latency_share=latency_share,
            bandwidth_share=bandwidth_share,
        )

    def counters(
        self,
        *,
        low_pct: int = 60,
        high_pct: int = 80,
        difference_pct: int = 10,
        covered_share: float = 0.9,
        under_share: float = 0.1,
        duration_ratio: float = 2.0,
    ) -> Result:
        """What did Nsight Compute measure of the kernels? Needs its tables: `tracekit.open(path, ncu=...)`."""
        return self.analyze(
            "counters",
            low_pct=low_pct,
            high_pct=high_pct,
            difference_pct=difference_pct,
            covered_share=covered_share,
            under_share=under_share,
            duration_ratio=duration_ratio,
        )

    def cuda_graphs(
        self,
        *,
        min_launches: int = 5,
        gpu_bound_share: float = 0.02,
        graphed_share: float = 0.9,
        critical_share: float = 0.2,
        wasted_share: float = 0.1,
    ) -> Result:
        """What would CUDA graphs win, and what stands in their way? By replaying steps with them."""
        return self.analyze(
            "cuda_graphs",
            min_launches=min_launches,
            gpu_bound_share=gpu_bound_share,
            graphed_share=graphed_share,
            critical_share=critical_share,
            wasted_share=wasted_share,
        )

    def fusion(
        self,
        *,
        kernel_floor_ns: int = 1_100,
        cache_speedup: float = 3.0,
        cache_share: float = 0.5,
        finding_share: float = 0.01,
        warning_share: float = 0.03,
    ) -> Result:
        """Which kernels could be one, and what would that win?"""
        return self.analyze(
            "fusion",
            kernel_floor_ns=kernel_floor_ns,
            cache_speedup=cache_speedup,
            cache_share=cache_share,
            finding_share=finding_share,
            warning_share=warning_share,
        )

    def health(
        self,
        *,
        missing_share: float = 0.01,
        unfinished_share: float = 0.1,
        other_share: float = 0.1,
        unattributed_share: float = 0.2,
        skew_ns: int = 1_000,
    ) -> Result:
        """Can this trace be trusted? Of all of the trace, whatever part is looked at."""
        return self.analyze(
            "health",
            missing_share=missing_share,
            unfinished_share=unfinished_share,
            other_share=other_share,
            unattributed_share=unattributed_share,
            skew_ns=skew_ns,
        )

    def idle_gaps(
        self,
        *,
        launch_latency_ns: int = 12_000,
        sync_slack_ns: int = 2_000,
        small_gap_ns: int = 500_000,
        host_hole_ns: int = 100_000,
        no_requests_ns: int = 20_000_000,
        first_use_ns: int = 50_000,
        idle_share: float = 0.02,
        finding_share: float = 0.02,
        critical_share: float = 0.2,
        missing_share: float = 0.02,
        graph_hole_ns: int = 100_000,
    ) -> Result:
        """Why does the GPU idle? Every hole in the work of each device, with its cause and who is to blame."""
        return self.analyze(
            "idle_gaps",
            launch_latency_ns=launch_latency_ns,
            sync_slack_ns=sync_slack_ns,
            small_gap_ns=small_gap_ns,
            host_hole_ns=host_hole_ns,
            no_requests_ns=no_requests_ns,
            first_use_ns=first_use_ns,
            idle_share=idle_share,
            finding_share=finding_share,
            critical_share=critical_share,
            missing_share=missing_share,
            graph_hole_ns=graph_hole_ns,
        )

    def plan(
        self, *, min_share: float = 0.01, most: int = 10, group_share: float = 0.02, max_error: float = 0.05
    ) -> Result:
        """What should be changed first, and what is it worth on top of the rest?"""
        return self.analyze("plan", min_share=min_share, most=most, group_share=group_share, max_error=max_error)

    def roofline(
        self,
        *,
        memory_compute_ratio: float = 1.3,
        near_roof: float = 0.6,
        far_roof: float = 0.4,
        short_ns: int = 10_000,
        above_roof: float = 1.05,
        share: float = 0.05,
        covered_share: float = 0.9,
    ) -> Result:
        """Which kernels does memory bind, which computing, which neither, and how far are they from it?"""
        return self.analyze(
            "roofline",
            memory_compute_ratio=memory_compute_ratio,
            near_roof=near_roof,
            far_roof=far_roof,
            short_ns=short_ns,
            above_roof=above_roof,
            share=share,
            covered_share=covered_share,
        )

    def step_times(
        self,
        *,
        p99_ratio: float = 2.0,
        steady_steps: int = 20,
        outside_share: float = 0.1,
        empty_share: float = 0.1,
        empty_steps: int = 5,
        missing_share: float = 0.02,
    ) -> Result:
        """How long do serving steps take, and how busy is the GPU in them? The steps themselves: `steps`."""
        return self.analyze(
            "steps",
            p99_ratio=p99_ratio,
            steady_steps=steady_steps,
            outside_share=outside_share,
            empty_share=empty_share,
            empty_steps=empty_steps,
            missing_share=missing_share,
        )
