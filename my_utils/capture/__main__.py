from my_utils.capture.on_demand.command import main

raise SystemExit(main())
