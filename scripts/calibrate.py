"""How well the simulator predicts a live run: `python scripts/calibrate.py fit=FOLDER predict=FOLDER`."""

import json
from pathlib import Path

from mooncake_jax import calibrate, launch
from mooncake_jax.config import CalibrateSettings


def main(settings: CalibrateSettings, run: launch.Run) -> None:
    with launch.progress() as show:
        show("reading the runs", 0, None)
        fit, live = (calibrate.read_run(Path(folder)) for folder in (settings.fit, settings.predict))
        show("simulating", 0, None)
        found = calibrate.predict(fit, live, settings.draws, settings.seed)
    rows = []
    print(f"{'metric':<12}{'live (ms)':>12}{'simulated':>12}{'error (%)':>12}")
    for one in found:
        verdict = "within" if abs(one.error) <= settings.tolerance else "outside"
        name = f"{one.metric.upper()} {one.statistic}"
        print(f"{name:<12}{1000 * one.live:>12.2f}{1000 * one.simulated:>12.2f}{100 * one.error:>+12.1f}  {verdict}")
        rows.append({"metric": one.metric, "statistic": one.statistic, "live": one.live, "simulated": one.simulated})
    (run.folder / "calibration.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    kept = sum(abs(one.error) <= settings.tolerance for one in found)
    print(f"{kept} of {len(found)} numbers are within {settings.tolerance:.0%}")
    print(run.folder)


if __name__ == "__main__":
    launch.run(main, "calibrate")
