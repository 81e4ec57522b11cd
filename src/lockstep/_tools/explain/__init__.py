"""Why a run is slow or stuck: where its time goes, and who the others wait for."""
